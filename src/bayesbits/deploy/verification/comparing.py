"""Deployed network and runtime, place by place, over batches of inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import ModelProto
from torch import Tensor

from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.onnx.tensor_names import Checkpoint, read_checkpoints
from bayesbits.deploy.verification.constants import folded_constants
from bayesbits.deploy.verification.deployed import class_axes, run_exact
from bayesbits.deploy.verification.feeding import quantized
from bayesbits.deploy.verification.outputs import decide
from bayesbits.deploy.verification.record import Decisions, Place, VerificationError
from bayesbits.deploy.verification.returned import same_names
from bayesbits.deploy.verification.rounding import (
    ROUNDINGS,
    UNIT,
    allowed,
    differences,
    far,
    largest,
    largest_difference,
)
from bayesbits.deploy.verification.runtime import Session
from bayesbits.deploy.verification.segments import Cutter, Segment

Array = NDArray[Any]

EXACT_SUM = 2**24
"""Whole numbers below are numbers of float32."""
LARGEST_CODE = 255
LONGEST_ROW = 2**12
"""Products of matrices, softmax and normalization of features add up rows, which are no longer."""
PARTIAL_SUMS = 16
"""How many partial sums a runtime forms at least: instructions add eight numbers at once, and loops are unrolled."""


@dataclass
class _Counts:
    values: int = 0
    differing: int = 0
    relative_error: float = 0.0
    differing_end_to_end: int = 0
    relative_error_end_to_end: float = 0.0
    decisions_end_to_end: Decisions = field(default_factory=Decisions)


class Comparison:
    """Runs an ONNX file whole and in pieces beside the deployed network."""

    def __init__(self, small: DeployedNetwork, model: ModelProto) -> None:
        self.small = small
        integer = {layer.name for layer in small.integer.layers if layer.arithmetic == "integer"}
        checkpoints = read_checkpoints(model)
        self._check_nodes(checkpoints)
        cutter = Cutter(model, checkpoints, integer, folded_constants(model, small))
        self.segments = cutter.segments
        self._places = {checkpoint.value: checkpoint for checkpoint in checkpoints}
        self._pieces = [Session(cutter.piece(segment), threads=1) for segment in self.segments]
        self._whole, self._exposed = Session(model), Session(cutter.exposed())
        self._inputs = [value.name for value in model.graph.input]
        self._outputs = [value.name for value in model.graph.output]
        same_names("inputs", self._inputs, small.integer.structure.inputs, "the ONNX file has")
        same_names("outputs", self._outputs, small.integer.structure.outputs, "the ONNX file has")
        self._axes = dict(zip(self._outputs, class_axes(small), strict=True))
        self._counts = [_Counts() for _ in self.segments]
        self._exact: list[bool] = []
        nodes = {node.name: node for node in small.program.graph.nodes}
        self._wanted = {checkpoint.node for checkpoint in checkpoints}
        self._read = {name: nodes[name].all_input_nodes[0].name for name in self._wanted}

    @property
    def nodes(self) -> set[str]:
        """What is needed of the deployed program."""
        return self._wanted | set(self._read.values())

    @property
    def places(self) -> tuple[Place, ...]:
        """What was found so far."""
        exact = self._exact or [segment.exact for segment in self.segments]
        pairs = zip(self.segments, exact, self._counts, strict=True)
        outputs = [segment.value if segment.value in self._outputs else None for segment in self.segments]
        return tuple(
            Place(segment.name, segment.kind, equal, **vars(counts), output=output)
            for (segment, equal, counts), output in zip(pairs, outputs, strict=True)
        )

    def run(self, inputs: list[Tensor], count: int, values: Mapping[str, Tensor], outputs: Sequence[Tensor]) -> None:
        """Compare one batch of `count` examples; raises at the first place that differs."""
        known = dict(zip(self._inputs, (x.numpy() for x in inputs), strict=True))
        known |= {value: _carried(place, values[place.node]) for value, place in self._places.items()}
        known |= dict(zip(self._outputs, (output.numpy() for output in outputs), strict=True))
        self._exact = self._exact or [_is_exact(segment, known, count) for segment in self.segments]
        exact: dict[str, Tensor] = {}
        if not all(self._exact):
            exact, results = run_exact(self.small, inputs, values, self.nodes)
            exact |= dict(zip(self._outputs, results, strict=True))
        for segment, equal, session, counts in zip(self.segments, self._exact, self._pieces, self._counts, strict=True):
            found = session.run({name: known[name] for name in session.inputs})
            _same_shape(segment, found[segment.value], known[segment.value])
            counts.values += known[segment.value].size
            counts.differing += int((found[segment.value] != known[segment.value]).sum())
            if equal:
                _judge_exact(segment, found[segment.value], known[segment.value])
            else:
                terms = _terms(segment, known, count)
                self._judge_close(segment, counts, found, known, values, exact, terms)
        self._run_whole({name: known[name] for name in self._inputs}, known)

    def _judge_close(
        self,
        segment: Segment,
        counts: _Counts,
        found: Mapping[str, Array],
        known: Mapping[str, Array],
        values: Mapping[str, Tensor],
        exact: Mapping[str, Tensor],
        terms: int,
    ) -> None:
        """A piece with float operations: its numbers, and where it ends in a quantizer those that are quantized."""
        checkpoint, result = segment.checkpoint, torch.from_numpy(found[segment.value])
        if segment.quantized is not None and segment.quantized in found and checkpoint is not None:
            read, grid = self._read[checkpoint.node], self.small.integer.grid(checkpoint.of)
            room = self._judge_numbers(
                segment, counts, torch.from_numpy(found[segment.quantized]), values[read], exact[read], terms
            )
            low, high = (quantized(grid, number) for number in (exact[read] - room, exact[read] + room))
            codes = result.double() - (checkpoint.zero_point or 0)
            wrong = ~((low <= codes) & (codes <= high))
        elif result.is_floating_point():
            name = segment.value if checkpoint is None else checkpoint.node
            self._judge_numbers(segment, counts, result, torch.from_numpy(known[segment.value]), exact[name], terms)
            return
        else:
            mine = torch.from_numpy(known[segment.value])
            if checkpoint is not None and checkpoint.zero_point is not None:
                wrong = (result.long() - mine.long()).abs() > 1
            else:  # decisions, say: whoever computes exactly decides as well as the deployed network
                wrong = (result != mine) & (result != exact[segment.value])
        if bool(wrong.any()):
            what = "values" if checkpoint is None else "codes"
            raise VerificationError(
                f"{segment.name}: {int(wrong.sum())} of {wrong.numel()} {what} of the {segment.kind} differ in "
                "onnxruntime, fed the same values, and no tie is near"
            )

    def _judge_numbers(
        self, segment: Segment, counts: _Counts, theirs: Tensor, mine: Tensor, right: Tensor, terms: int
    ) -> Tensor:
        """Raises where numbers are farther apart than is allowed; returns how far that is.

        A sum of that many terms loses more where each of some partial sums is rounded at every term.
        """
        apart = differences(theirs, right)
        room = allowed(right, mine, ROUNDINGS + UNIT * terms / PARTIAL_SUMS)
        counts.relative_error = max(counts.relative_error, largest(apart) / (largest(right) or 1.0))
        if not bool((apart <= room).all()):
            raise VerificationError(
                f"{segment.name}: numbers of the {segment.kind} are {far(apart, room, right)}, in onnxruntime, fed the "
                "same values"
            )
        return room

    def _run_whole(self, feeds: dict[str, Array], known: dict[str, Array]) -> None:
        plain, exposed = self._whole.run(feeds), self._exposed.run(feeds)
        followed = self._followed_exactly()
        all_exact = {segment.value for segment, exact in zip(self.segments, followed, strict=True) if exact}
        for name in self._outputs:
            if name in all_exact and not np.array_equal(plain[name], exposed[name], equal_nan=True):
                raise VerificationError(
                    f"{name}: onnxruntime computes something else when inner tensors are read as well, so that what "
                    "was compared is not what runs"
                )
            if name not in {segment.value for segment in self.segments}:
                _judge_exact_output(name, plain[name], known[name])
        for segment, counts, exact in zip(self.segments, self._counts, followed, strict=True):
            found, expected = (plain | exposed)[segment.value], known[segment.value]
            found = plain.get(segment.value, found)
            _same_shape(segment, found, expected)
            differing = int((found != expected).sum())
            counts.differing_end_to_end += differing
            one, other = torch.from_numpy(found), torch.from_numpy(expected)
            apart = largest_difference(one.double(), other.double()) / (largest(other) or 1.0)
            counts.relative_error_end_to_end = max(counts.relative_error_end_to_end, apart)
            axis = self._axes.get(segment.value)
            counts.decisions_end_to_end = decide(other, one, axis, counts.decisions_end_to_end)
            if exact and differing:
                raise VerificationError(
                    f"{segment.name}: {differing} of {expected.size} values of the {segment.kind} differ "
                    "between the deployed network and onnxruntime when the whole file runs, but not by themselves"
                )

    def _followed_exactly(self) -> list[bool]:
        """For every segment whether everything in front of it is exact, too."""
        exact = dict.fromkeys(self._inputs, True)
        for segment, equal in zip(self.segments, self._exact, strict=True):
            exact[segment.value] = equal and all(exact[source] for source in segment.sources)
        return [exact[segment.value] for segment in self.segments]

    def _check_nodes(self, checkpoints: tuple[Checkpoint, ...]) -> None:
        names = {node.name for node in self.small.program.graph.nodes}
        strange = [checkpoint.of for checkpoint in checkpoints if checkpoint.node not in names]
        if strange:
            raise VerificationError(f"{strange[0]}: the ONNX file was exported from another deployed network")


def _terms(segment: Segment, known: Mapping[str, Array], batch: int) -> int:
    """At most how many terms a sum of this piece has: no more than it reads of one example, or one row of it."""
    each = max([known[source].size // max(1, batch) for source in segment.sources], default=1)
    return each if segment.averages else min(each, LONGEST_ROW)


def _is_exact(segment: Segment, known: Mapping[str, Array], batch: int) -> bool:
    """Whether there is one right answer: averages have, of as many codes as can be summed up exactly."""
    terms = _terms(segment, known, batch)
    fits = (
        not segment.averages or terms // max(1, known[segment.value].size // max(1, batch)) < EXACT_SUM // LARGEST_CODE
    )
    return segment.exact and fits


def _carried(place: Checkpoint, value: Tensor) -> Array:
    """A value as the file has it."""
    array: Array = value.numpy() if place.zero_point is None else (value + place.zero_point).numpy().astype(np.uint8)
    return array


def _same_shape(segment: Segment, found: Array, expected: Array) -> None:
    if found.shape != expected.shape:
        raise VerificationError(f"{segment.name}: shape {found.shape} in onnxruntime and {expected.shape} deployed")


def _judge_exact(segment: Segment, found: Array, expected: Array) -> None:
    differing = found != expected
    if differing.any():
        place = tuple(int(i) for i in np.argwhere(differing)[0])
        what = "codes" if np.issubdtype(expected.dtype, np.integer) else "values"
        raise VerificationError(
            f"{segment.name}: {int(differing.sum())} of {differing.size} {what} of the "
            f"{segment.kind} differ, fed the same values; the first, at {place}, is {found[place]} in onnxruntime and "
            f"{expected[place]} in the deployed network"
        )


def _judge_exact_output(name: str, found: Array, expected: Array) -> None:
    """An output that is a constant of the file, or an input."""
    if found.shape != expected.shape or not np.array_equal(found, expected, equal_nan=True):
        raise VerificationError(f"{name}: onnxruntime returns something else than the deployed network")
