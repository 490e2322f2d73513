"""The ONNX file in the runtime, compared with the deployed network tensor by tensor, and then end to end.

Tensor by tensor, the runtime runs one subgraph on the deployed network's own values. Its result has to be equal bit by
bit where it is defined so, and elsewhere as close to the exact value as rounding in float32 explains. End to end, the
whole file runs from the network's inputs; differences are counted, and there may be none where every tensor is exact.
An output of numbers has to be close there, too, where all codes that it is computed from are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import ModelProto
from torch import Tensor
from torch.nn import functional

from bayesbits.deploy.exact_sums import EXACT_IN_FLOAT32
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.onnx.runtime import NAME, Session
from bayesbits.deploy.onnx.tensor_names import MappedTensor, read_tensor_map
from bayesbits.deploy.verification.block_weights import activation_error, rounds_activations
from bayesbits.deploy.verification.compare_dynamic_layers import DynamicLayerComparison
from bayesbits.deploy.verification.compare_outputs import check_names, class_axes, compare_predictions
from bayesbits.deploy.verification.deployed_codes import quantize
from bayesbits.deploy.verification.deployed_program import run_exact
from bayesbits.deploy.verification.differences import (
    LAYER_ROUNDOFF,
    UNIT_ROUNDOFF,
    ArrayComparison,
    count_true,
    describe_excess,
    differences,
    largest,
    largest_difference,
    tolerance,
)
from bayesbits.deploy.verification.function_errors import function_error
from bayesbits.deploy.verification.onnx_subgraphs import Subgraph, SubgraphExtractor
from bayesbits.deploy.verification.result import Predictions, RuntimeTensor, VerificationError

Array = NDArray[Any]

LARGEST_CODE = 255
LONGEST_ROW = 2**12
"""Matrix products, softmax and normalization over features sum rows, which are no longer than this."""
PARTIAL_SUMS = 16
"""How many partial sums a runtime forms at least: instructions add eight numbers at once, and loops are unrolled."""
CHOICES = frozenset(("TopK", "ArgMax", "ArgMin", "NonMaxSuppression"))
"""Operations whose result jumps where the order of two numbers changes."""

_ARRAYS = ArrayComparison(f"in {NAME}, fed the same values,", "in the deployed network")
_END_TO_END = ArrayComparison(f"in {NAME}", "in the deployed network")


@dataclass
class _Counts:
    """The counts of one tensor so far; the fields are those of `RuntimeTensor`."""

    values: int = 0
    differing: int = 0
    relative_error: float = 0.0
    differing_end_to_end: int = 0
    relative_error_end_to_end: float = 0.0
    predictions_end_to_end: Predictions = field(default_factory=Predictions)


@dataclass
class _BatchValues:
    """The deployed network's values of one batch, by the names of the file and of the program."""

    count: int
    """The number of examples."""
    in_file: Mapping[str, Array]
    """The values as the file holds them, by the tensor's name there."""
    in_program: Mapping[str, Tensor]
    """The values of nodes of the program in float32."""
    exact: Mapping[str, Tensor]
    """The same in float64, by node, and by name for outputs."""


class RuntimeComparison:
    """Runs an ONNX file, whole and by subgraph, and compares it with the deployed network, batch by batch."""

    def __init__(self, small: DeployedNetwork, model: ModelProto) -> None:
        self.small = small
        tensors = read_tensor_map(model)
        self._check_nodes(tensors)
        extractor = SubgraphExtractor(model, tensors, small)
        self.subgraphs = extractor.subgraphs
        self._mapped = {tensor.value: tensor for tensor in tensors}
        self._extractor = extractor
        self._sessions: list[Session] = []
        """One for every subgraph, from the first batch on, which says how many axes tensors have."""
        self._whole, self._with_inner = Session(model), Session(extractor.with_inner_outputs())
        self._inputs = [value.name for value in model.graph.input]
        self._outputs = [value.name for value in model.graph.output]
        check_names("inputs", self._inputs, small.integer.structure.inputs, "the ONNX file has")
        check_names("outputs", self._outputs, small.integer.structure.outputs, "the ONNX file has")
        self._axes = dict(zip(self._outputs, class_axes(small), strict=True))
        self._counts = [_Counts() for _ in self.subgraphs]
        self._exact: list[bool] = []
        """For every subgraph whether its result is defined bit by bit; known from the first batch on."""
        nodes = {node.name: node for node in small.program.graph.nodes}
        self._computed_by = {tensor.node for tensor in tensors}
        self._source = {name: next(iter(nodes[name].all_input_nodes), nodes[name]).name for name in self._computed_by}
        """For every node of the map the node that it reads."""
        self._dynamic = DynamicLayerComparison(small, model)

    @property
    def nodes(self) -> set[str]:
        """The nodes of the deployed program whose values are compared."""
        return self._computed_by | set(self._source.values()) | self._dynamic.nodes

    def result(self) -> tuple[RuntimeTensor, ...]:
        """The counts so far."""
        exact = self._exact or [subgraph.exact for subgraph in self.subgraphs]
        rows = zip(self.subgraphs, exact, self._counts, strict=True)
        outputs = set(self._outputs)
        tensors = tuple(
            RuntimeTensor(
                subgraph.name,
                subgraph.kind,
                is_exact,
                **vars(counts),
                output=subgraph.value if subgraph.value in outputs else None,
            )
            for subgraph, is_exact, counts in rows
        )
        return (*tensors, *self._dynamic.result())

    def compare(
        self, inputs: list[Tensor], count: int, values: Mapping[str, Tensor], outputs: Sequence[Tensor]
    ) -> None:
        """Compare one batch of `count` examples with values and outputs of the deployed network; raises at the first
        tensor that differs."""
        in_file = dict(zip(self._inputs, (x.numpy() for x in inputs), strict=True))
        in_file |= {value: _as_in_file(tensor, values[tensor.node]) for value, tensor in self._mapped.items()}
        in_file |= dict(zip(self._outputs, (output.numpy() for output in outputs), strict=True))
        self._exact = self._exact or [_is_exact(subgraph, in_file, count) for subgraph in self.subgraphs]
        self._sessions = self._sessions or self._load(in_file)
        exact: dict[str, Tensor] = {}
        if not all(self._exact):
            exact, results = run_exact(self.small, inputs, values, self._judged_by_exact_values())
            exact |= dict(zip(self._outputs, results, strict=True))
        batch = _BatchValues(count, in_file, values, exact)
        rows = zip(self.subgraphs, self._exact, self._sessions, self._counts, strict=True)
        for subgraph, is_exact, session, counts in rows:
            self._compare_subgraph(subgraph, is_exact, session, counts, batch)
        self._dynamic.compare(values)
        self._compare_end_to_end(batch)

    def _load(self, in_file: Mapping[str, Array]) -> list[Session]:
        """A session for every subgraph, which reads values with as many axes as these."""
        ranks = {name: value.ndim for name, value in in_file.items()}
        return [Session(self._extractor.to_model(subgraph, ranks), threads=1) for subgraph in self.subgraphs]

    def _compare_subgraph(
        self, subgraph: Subgraph, is_exact: bool, session: Session, counts: _Counts, batch: _BatchValues
    ) -> None:
        results = session.run({name: batch.in_file[name] for name in session.inputs})
        found, expected = results[subgraph.value], batch.in_file[subgraph.value]
        _ARRAYS.check_shape(subgraph.name, _value_of(subgraph), found, expected)
        differing = found != expected
        counts.values += expected.size
        counts.differing += count_true(differing)
        if is_exact:
            _ARRAYS.check_none(subgraph.name, _value_of(subgraph), differing, found, expected)
        else:
            self._compare_close(subgraph, counts, results, batch)

    def _compare_close(
        self, subgraph: Subgraph, counts: _Counts, results: Mapping[str, Array], batch: _BatchValues
    ) -> None:
        """Compare a subgraph with float operations: its numbers, or the numbers that it quantizes and their codes."""
        tensor, found = subgraph.mapped, torch.from_numpy(results[subgraph.value])
        expected = torch.from_numpy(batch.in_file[subgraph.value])
        terms = _terms(subgraph, batch.in_file, batch.count)
        if subgraph.rounds_numbers and tensor is not None:
            source, grid = self._source[tensor.node], self.small.integer.grid(tensor.of)
            deployed, exact = batch.in_program[source], batch.exact[source]
            if subgraph.unquantized is None:  # of integers, and rounded at once, with the zero point added in float32
                allowed = tolerance(exact, deployed, LAYER_ROUNDOFF) + UNIT_ROUNDOFF * LARGEST_CODE * grid.step
            else:
                numbers = torch.from_numpy(results[subgraph.unquantized])
                more = function_error(subgraph, exact)
                allowed = _check_numbers(subgraph, counts, numbers, deployed, exact, terms, more)
            low, high = (quantize(grid, number) for number in (exact - allowed, exact + allowed))
            codes = found.double() - (tensor.zero_point or 0)
            wrong = ~((low <= codes) & (codes <= high))
        elif found.is_floating_point():
            self._compare_numbers(subgraph, counts, found, batch)
            return
        elif tensor is not None and tensor.zero_point is not None:
            wrong = (found.long() - expected.long()).abs() > 1
        else:  # integers such as an argmax: the exact computation may decide otherwise than the deployed network
            wrong = (found != expected) & (found != batch.exact[subgraph.value])
        if bool(wrong.any()):
            what = "values" if tensor is None else "codes"
            raise VerificationError(
                f"{subgraph.name}: {int(wrong.sum())} of {wrong.numel()} {what} of the {subgraph.kind} differ in "
                f"{NAME}, fed the same values, and no tie is near"
            )

    def _compare_numbers(
        self, subgraph: Subgraph, counts: _Counts, found: Tensor, batch: _BatchValues, how: str = "fed the same values"
    ) -> None:
        """Compare the numbers that a subgraph computes; `how` says in an error which ones they are."""
        tensor, expected = subgraph.mapped, torch.from_numpy(batch.in_file[subgraph.value])
        exact = batch.exact[subgraph.value if tensor is None else tensor.node]
        more = self._rounded_activations(subgraph, batch) + function_error(subgraph, exact)
        terms = _terms(subgraph, batch.in_file, batch.count)
        _check_numbers(subgraph, counts, found, expected, exact, terms, more, how)

    def _rounded_activations(self, subgraph: Subgraph, batch: _BatchValues) -> Tensor | float:
        """How far a layer may be off because its kernel rounds activations to 8 bits; 0 for all others."""
        tensor = subgraph.mapped
        if tensor is None or tensor.kind != "Layer" or not any(map(rounds_activations, subgraph.nodes)):
            return 0.0
        network, x = self.small.integer, batch.in_program[self._source[tensor.node]]
        return activation_error(network.layer(tensor.of), network.codes(tensor.of), network.steps(tensor.of), x)

    def _compare_end_to_end(self, batch: _BatchValues) -> None:
        in_file = batch.in_file
        feeds = {name: in_file[name] for name in self._inputs}
        plain, with_inner = self._whole.run(feeds), self._with_inner.run(feeds)
        exact_from_inputs = self._exact_from_inputs()
        computed = {subgraph.value for subgraph in self.subgraphs}
        for name in self._outputs:
            if exact_from_inputs.get(name) and not np.array_equal(plain[name], with_inner[name], equal_nan=True):
                raise VerificationError(
                    f"{name}: {NAME} computes something else when inner tensors are outputs as well, so that what was "
                    "compared is not what runs"
                )
            if name not in computed:  # an output that is a constant of the file, or an input
                same_shape = plain[name].shape == in_file[name].shape
                if not same_shape or not np.array_equal(plain[name], in_file[name], equal_nan=True):
                    raise VerificationError(f"{name}: {NAME} returns something else than the deployed network")
        self._check_outputs(with_inner, plain, batch)
        for subgraph, counts in zip(self.subgraphs, self._counts, strict=True):
            found, expected = (with_inner | plain)[subgraph.value], in_file[subgraph.value]
            _END_TO_END.check_shape(subgraph.name, _value_of(subgraph), found, expected)
            differing = count_true(found != expected)
            counts.differing_end_to_end += differing
            one, other = torch.from_numpy(found), torch.from_numpy(expected)
            error = largest_difference(one.double(), other.double()) / (largest(other) or 1.0) if differing else 0.0
            counts.relative_error_end_to_end = max(counts.relative_error_end_to_end, error)
            axis = self._axes.get(subgraph.value)
            counts.predictions_end_to_end = compare_predictions(other, one, axis, counts.predictions_end_to_end)
            if exact_from_inputs[subgraph.value] and differing:
                raise VerificationError(
                    f"{subgraph.name}: {differing} of {expected.size} values of the {subgraph.kind} differ between the "
                    f"deployed network and {NAME} when the whole file runs, but not by themselves"
                )

    def _check_outputs(self, with_inner: dict[str, Array], plain: dict[str, Array], batch: _BatchValues) -> None:
        """Outputs of numbers have to be close when the whole file runs, where all that they are computed from is equal:
        a runtime that changes the graph can change what it returns alone. Of the file as it is, inner tensors are not
        known; they are equal where each is defined bit by bit."""
        values = {name: batch.in_file[name] for name in self._inputs} | with_inner
        exact_from_inputs = self._exact_from_inputs()
        how = "when the whole file runs, though all that they are computed from is equal"
        for subgraph, is_exact in zip(self.subgraphs, self._exact, strict=True):
            if is_exact or subgraph.value not in self._outputs or plain[subgraph.value].dtype != np.float32:
                continue
            if all(np.array_equal(values[name], batch.in_file[name]) for name in subgraph.inputs):
                defined = all(exact_from_inputs[name] for name in subgraph.inputs)
                for found in (with_inner, plain) if defined else (with_inner,):
                    self._compare_numbers(subgraph, _Counts(), torch.from_numpy(found[subgraph.value]), batch, how)

    def _judged_by_exact_values(self) -> set[str]:
        """The nodes of the program that subgraphs with float operations compute, and those that they quantize."""
        rows = zip(self.subgraphs, self._exact, strict=True)
        judged = {subgraph.mapped.node for subgraph, is_exact in rows if not is_exact and subgraph.mapped is not None}
        return judged | {self._source[name] for name in judged}

    def _exact_from_inputs(self) -> dict[str, bool]:
        """For every tensor whether it and every tensor in front of it is exact."""
        exact = dict.fromkeys(self._inputs, True)
        for subgraph, is_exact in zip(self.subgraphs, self._exact, strict=True):
            exact[subgraph.value] = is_exact and all(exact[name] for name in subgraph.inputs)
        return exact

    def _check_nodes(self, tensors: Sequence[MappedTensor]) -> None:
        names = {node.name for node in self.small.program.graph.nodes}
        unknown = [tensor.of for tensor in tensors if tensor.node not in names]
        if unknown:
            raise VerificationError(f"{unknown[0]}: the ONNX file was exported from another deployed network")


def _check_numbers(
    subgraph: Subgraph, counts: _Counts, found: Tensor, deployed: Tensor, exact: Tensor, terms: int,
    more: Tensor | float = 0.0, how: str = "fed the same values",
) -> Tensor:  # fmt: skip
    """Raise where numbers are farther from the exact ones than allowed; returns the tolerance.

    The tolerance grows with the number of terms of a sum: a runtime rounds partial sums at every term. `more` is what
    is allowed besides.
    """
    apart = differences(found, exact)
    allowed = tolerance(exact, deployed, LAYER_ROUNDOFF + UNIT_ROUNDOFF * terms / PARTIAL_SUMS) + more
    counts.relative_error = max(counts.relative_error, largest(apart) / (largest(exact) or 1.0))
    if not bool((apart <= allowed).all()):
        raise VerificationError(
            f"{subgraph.name}: numbers of the {subgraph.kind} are {describe_excess(apart, allowed, exact)}, in {NAME}, "
            f"{how}{_choices(subgraph)}"
        )
    return allowed


def _choices(subgraph: Subgraph) -> str:
    """What a user can do about a tensor that is chosen by the order of others."""
    chosen = sorted({node.op_type for node in subgraph.nodes} & CHOICES)
    if not chosen:
        return ""
    return (
        f". It is computed by {', '.join(chosen)}, and equal or nearly equal numbers have no order that two "
        "implementations share: deploy the network without this last step, and take it yourself"
    )


def _terms(subgraph: Subgraph, in_file: Mapping[str, Array], count: int) -> int:
    """How many terms a sum of this subgraph has at most: the values that it reads of one example, or one row."""
    read = [name for name in subgraph.inputs if name not in subgraph.weight_inputs]
    each = max([in_file[name].size // max(1, count) for name in read], default=1)
    return each if subgraph.sums_over_positions else min(each, LONGEST_ROW)


def _is_exact(subgraph: Subgraph, in_file: Mapping[str, Array], count: int) -> bool:
    """Whether the result is defined bit by bit: averages are, of so few codes that float32 sums them exactly."""
    if not subgraph.sums_over_positions:
        return subgraph.exact
    outputs = max(1, in_file[subgraph.value].size // max(1, count))
    return subgraph.exact and _terms(subgraph, in_file, count) // outputs < EXACT_IN_FLOAT32 // LARGEST_CODE


def _as_in_file(tensor: MappedTensor, value: Tensor) -> Array:
    """A value of the deployed program as the file holds it."""
    if tensor.more_channels:
        value = functional.pad(value, (0, 0) * (value.dim() - 2) + (0, tensor.more_channels))
    if tensor.zero_point is None:
        return value.numpy()
    _check_codes(tensor.of, value)
    return (value + tensor.zero_point).numpy().astype(np.uint8)


def _check_codes(name: str, codes: Tensor) -> None:
    missing = codes.isnan()
    if bool(missing.any()):
        raise VerificationError(
            f"{name}: {count_true(missing)} of {missing.numel()} numbers that are quantized are NaN in the deployed "
            "network, and NaN has no code, so that every runtime has another one. A softmax over nothing but -inf is "
            "NaN, as for an example whose mask hides everything: leave such examples out, or mask by a finite number, "
            "such as torch.finfo(torch.float32).min"
        )


def _value_of(subgraph: Subgraph) -> str:
    return f"value of the {subgraph.kind}"
