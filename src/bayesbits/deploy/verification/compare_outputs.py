"""The outputs of simulation and deployed network: their values, their names, and the containers they come in."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx, nn

from bayesbits.deploy.modules import LAYERS
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.signature import name_tensors
from bayesbits.deploy.verification.deployed_program import module_of, run_deployed
from bayesbits.deploy.verification.differences import (
    describe_excess,
    differences,
    largest,
    largest_difference,
    tolerance,
)
from bayesbits.deploy.verification.inputs import Batch
from bayesbits.deploy.verification.result import Predictions, SimulatedOutput, VerificationError
from bayesbits.graph.exported_program import operation
from bayesbits.utils.pytree import Tree, describe

# fmt: off
_MOVES_AXES = frozenset((
    "permute", "transpose", "t", "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "cat", "stack",
    "movedim", "mm", "bmm", "matmul", "mean", "sum", "amax", "amin", "max", "min", "logsumexp", "select", "index",
    "index_select",
))
# fmt: on


@dataclass
class _Counts:
    """The counts of one output so far."""

    values: int = 0
    largest: float = 0.0
    error: float = 0.0
    tolerance: float = 0.0
    error_end_to_end: float = 0.0
    predictions: Predictions = field(default_factory=Predictions)


class OutputComparison:
    """Compares the values of all outputs, batch by batch."""

    def __init__(self, small: DeployedNetwork) -> None:
        self._names, self._axes = small.integer.structure.outputs, class_axes(small)
        self._counts: dict[str, _Counts] = {}

    def compare(
        self,
        end_to_end: Sequence[Tensor],
        exact: Sequence[Tensor],
        in_float32: Sequence[Tensor],
        deployed: Sequence[Tensor],
    ) -> None:
        """Compare one batch; raises where an output differs by more than rounding explains.

        The simulation computed it end to end, and from the deployed network's codes in float64 and in float32.
        """
        if not len(end_to_end) == len(exact) == len(deployed) == len(self._names):
            raise VerificationError(
                f"output: the simulation returns {len(exact)} tensors, and the deployed network {len(deployed)}"
            )
        failures = []
        rows = zip(self._names, self._axes, end_to_end, exact, in_float32, deployed, strict=True)
        for name, axis, own, right, rounded, found in rows:
            if not own.shape == right.shape == found.shape:
                raise VerificationError(f"{name}: shape {tuple(own.shape)} when trained, {tuple(found.shape)} deployed")
            counts = self._counts.setdefault(name, _Counts())
            if found.is_floating_point():
                apart, allowed = differences(found, right), tolerance(right, rounded)
                counts.error = max(counts.error, largest(apart))
                counts.tolerance = max(counts.tolerance, largest(allowed))
                if not bool((apart <= allowed).all()):
                    failures.append(f"{name}: {describe_excess(apart, allowed, right)}")
            else:
                differing = (found != right) & (found != own)
                if bool(differing.any()):
                    failures.append(f"{name}: {int(differing.sum())} of {differing.numel()} values differ")
            counts.values += found.numel()
            counts.largest = max(counts.largest, largest(right))
            counts.error_end_to_end = max(counts.error_end_to_end, largest_difference(own, found))
            counts.predictions = compare_predictions(own, found, axis, counts.predictions)
        if failures:
            raise VerificationError(f"{failures[0]}, the simulation fed the deployed network's own codes")

    def result(self) -> tuple[SimulatedOutput, ...]:
        """The counts so far."""
        return tuple(
            SimulatedOutput(
                name,
                counts.values,
                counts.error / (counts.largest or 1.0),
                counts.tolerance / (counts.largest or 1.0),
                counts.error_end_to_end / (counts.largest or 1.0),
                counts.predictions,
            )
            for name, counts in self._counts.items()
        )


def compare_predictions(one: Tensor, other: Tensor, axis: int | None, before: Predictions) -> Predictions:
    """Count the predictions of one more batch, and how many of them differ."""
    if axis is None or not one.is_floating_point() or one.dim() < max(2, -axis) or one.shape[axis] < 2:
        return before
    flipped = one.argmax(axis) != other.argmax(axis)
    return Predictions(one.shape[axis], before.compared + flipped.numel(), before.flipped + int(flipped.sum()))


def class_axes(small: DeployedNetwork) -> list[int | None]:
    """For every output the axis of classes, counted from the end: the channels of the layer that computes it.

    None where operations after the layer may have moved that axis.
    """
    (output,) = (node for node in small.program.graph.nodes if node.op == "output")
    return [_class_axis(node, small) for node in output.args[0]]


def _class_axis(node: fx.Node, small: DeployedNetwork) -> int | None:
    while True:
        module = module_of(node)
        if module is not None and module[0] == LAYERS:
            layer = small.integer.layer(module[1])
            return -1 if layer.kind == "linear" else 1 - len(layer.weight_shape)
        if module is None and (node.op != "call_function" or operation(node) in _MOVES_AXES):
            return None
        if not node.all_input_nodes:
            return None
        node = node.all_input_nodes[0]


def check_arguments(small: DeployedNetwork, model: nn.Module) -> None:
    """The arguments of the deployed network have the order and the names of the network's own."""
    structure = small.integer.structure
    parameters = list(inspect.signature(model.forward).parameters)
    arguments = [argument.name for argument in structure.takes if argument.name in parameters]
    check_names("arguments", arguments, [name for name in parameters if name in arguments], "the record has")
    check_names("inputs", structure.inputs, name_tensors(structure.takes, structure.returns)[0], "the record has")


def check_returned(small: DeployedNetwork, batch: Batch, returned: Tree) -> None:
    """A call of the deployed network returns the outputs of its program in the containers of the simulation."""
    structure = small.integer.structure
    check_names("outputs", structure.outputs, name_tensors(structure.takes, returned)[1], "the record has")
    _, outputs = run_deployed(small, small.bind(batch.args, batch.kwargs), ())
    found, expected = list[Tensor](), list[Tensor]()
    with torch.no_grad():
        deployed = describe(small(*batch.args, **batch.kwargs), found)
    simulated = describe(returned.build(outputs), expected)
    if deployed != simulated:
        raise VerificationError(
            f"outputs: the deployed network returns {_in_words(deployed)}, and the simulation {_in_words(simulated)}"
        )
    for name, one, other in zip(structure.outputs, found, expected, strict=True):
        if one.shape != other.shape or largest_difference(one, other):
            raise VerificationError(f"{name}: the deployed network returns another of its outputs under this name")


def check_names(what: str, found: Sequence[str], expected: Sequence[str], where: str) -> None:
    """Raise unless names and their order are the network's."""
    if list(found) != list(expected):
        raise VerificationError(f"{what}: {where} {', '.join(found) or 'none'}, and the network {', '.join(expected)}")


def _in_words(tree: Tree) -> str:
    """The path of every tensor, and of every constant with its value."""
    leaves = [(".".join(path), leaf.content) for path, leaf in tree.leaves()]
    return f"a {tree.kind} of " + ", ".join(f"{path} = {content}" if content else path for path, content in leaves)
