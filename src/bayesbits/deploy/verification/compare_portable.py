"""A file of the form "qdq" in a runtime, compared with the deployed network in steps of its grids.

The arithmetic of a runtime is its own here: sums of integers are equal, but where a number is scaled and rounded, the
last bit of a float may decide, and so a value may land on the neighboring code. Two comparisons say how much that is:

- layer by layer: the file is cut at its layers, products, tables and quantizers, each reads the deployed network's own
  values, and no value of the result may be farther than `LARGEST_STEPS` away;
- end to end: the whole file runs from the network's inputs. Differences add up from layer to layer, and a runtime may
  leave out the rounding between operations that it computes at once: OpenVINO does not round the output of a layer that
  it adds to another tensor in the same kernel. All this is counted; the mean over an output may not exceed
  `MEAN_STEPS_END_TO_END`. Kernels depend on the size of a batch, so that the first examples also run in batches of the
  `SMALL_BATCHES`.

A step is that of the tensor's grid. A tensor without a grid has steps of the 255th part of its largest value. Outputs
that are integers, such as an argmax, are counted and not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from onnx import ModelProto
from torch import Tensor

from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.onnx.qdq_nodes import grids_of
from bayesbits.deploy.onnx.tensor_names import MappedTensor, read_tensor_map
from bayesbits.deploy.verification.compare_outputs import check_names, class_axes, compare_predictions
from bayesbits.deploy.verification.cut_model import cut_model, given
from bayesbits.deploy.verification.deployed_program import run_deployed
from bayesbits.deploy.verification.differences import count_true, differences, largest
from bayesbits.deploy.verification.onnx_subgraphs import KINDS
from bayesbits.deploy.verification.result import Predictions, RuntimeTensor, Steps, VerificationError
from bayesbits.records.integer_network import Grid

Array = NDArray[Any]

LARGEST_STEPS = 1.01
"""How many steps a value may be away from the deployed network's, fed the same values: to the neighboring code."""
MEAN_STEPS_END_TO_END = 64.0
"""How many steps an output may be away in the mean when the whole file runs: beyond, it is another network's output."""
SMALL_BATCHES = (1, 4)
"""The sizes of batches in which the first examples run as well, where the network takes batches of any size."""
LEVELS = 255
"""The number of steps in the largest value of a tensor without a grid."""


class RuntimeSession(Protocol):
    """What runs a model: `Session` of onnx/runtime.py, or of onnx/openvino_runtime.py."""

    inputs: list[str]
    outputs: list[str]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]: ...


@dataclass
class _Differences:
    """How far the values of one tensor are from the deployed network's, over the batches so far."""

    values: int = 0
    differing: int = 0
    largest_value: float = 0.0
    largest: float = 0.0
    total: float = 0.0
    step: float | None = None
    """The step of the grid; None for a tensor without one."""
    judged: bool = True
    """Whether its values are numbers, which differ by steps."""
    predictions: Predictions = field(default_factory=Predictions)

    def add(self, found: Tensor, expected: Tensor) -> None:
        self.judged = expected.is_floating_point()
        apart = differences(found.double(), expected.double())
        self.values += expected.numel()
        limit = 0.0 if self.step is None else self.step / 2
        self.differing += count_true(apart > limit)
        self.largest_value = max(self.largest_value, largest(expected))
        self.largest = max(self.largest, float(apart.max()) if apart.numel() else 0.0)
        self.total += float(apart.sum())

    @property
    def unit(self) -> float:
        """The size of a step."""
        return self.step if self.step is not None else self.largest_value / LEVELS or 1.0

    @property
    def largest_steps(self) -> float:
        return self.largest / self.unit

    @property
    def mean_steps(self) -> float:
        return self.total / max(1, self.values) / self.unit

    @property
    def relative_error(self) -> float:
        return self.largest / (self.largest_value or 1.0)


class PortableComparison:
    """Runs a file of the form "qdq", cut and whole, and compares it with the deployed network, batch by batch."""

    def __init__(
        self, small: DeployedNetwork, model: ModelProto, name: str, load: Callable[[ModelProto], RuntimeSession]
    ) -> None:
        self.small, self.name, self._load, self._model = small, name, load, model
        self._tensors = read_tensor_map(model)
        structure = small.integer.structure
        self._whole = load(model)
        self._cut: RuntimeSession | None = None
        self._compared_small_batches = False
        check_names("inputs", self._whole.inputs, structure.inputs, "the ONNX file has")
        check_names("outputs", self._whole.outputs, structure.outputs, "the ONNX file has")
        names = {node.name for node in small.program.graph.nodes}
        unknown = [tensor.of for tensor in self._tensors if tensor.node not in names]
        if unknown:
            raise VerificationError(f"{unknown[0]}: the ONNX file was exported from another deployed network")
        self._grids = grids_of(small.integer, self._tensors)
        self._axes = dict(zip(structure.outputs, class_axes(small), strict=True))
        self._alone = {tensor.value: _Differences(step=self._step(tensor.value)) for tensor in self._tensors}
        self._alone |= {name: _Differences() for name in structure.outputs if name not in self._alone}
        self._end_to_end = {name: _Differences(step=self._step(name)) for name in structure.outputs}

    @property
    def nodes(self) -> set[str]:
        """The nodes of the deployed program whose values are compared."""
        return {tensor.node for tensor in self._tensors}

    def compare(
        self, inputs: list[Tensor], count: int, values: Mapping[str, Tensor], outputs: Sequence[Tensor]
    ) -> None:
        """Compare one batch with values and outputs of the deployed network; raises at the first tensor that is too
        far away."""
        expected = {each.value: _numbers(values[each.node], self._grids.get(each.value)) for each in self._tensors}
        expected |= dict(zip(self._whole.outputs, outputs, strict=True))
        feeds = {name: x.numpy() for name, x in zip(self._whole.inputs, inputs, strict=True)}
        if self._cut is None:
            ranks = {name: value.dim() for name, value in expected.items()}
            self._cut = self._load(cut_model(self._model, self._tensors, ranks))
        wanted = set(self._cut.inputs)
        pieces = feeds | {given(name): value.numpy() for name, value in expected.items() if given(name) in wanted}
        found = self._cut.run(pieces)
        for name, counts in self._alone.items():
            self._add(name, counts, found[name], expected[name])
        self._check_alone()
        whole = self._whole.run(feeds)
        for name, counts in self._end_to_end.items():
            one = self._add(name, counts, whole[name], expected[name])
            counts.predictions = compare_predictions(expected[name], one, self._axes[name], counts.predictions)
        self._check_end_to_end(self._end_to_end)
        if not self._compared_small_batches:
            self._compared_small_batches = True
            self._compare_small_batches(inputs, count)

    def _compare_small_batches(self, inputs: list[Tensor], count: int) -> None:
        """Judge the whole file on the first examples, in small batches."""
        structure = self.small.integer.structure
        for size in SMALL_BATCHES if structure.dynamic_batch else ():
            if size < count:
                some = [x[:size] if own else x for x, own in zip(inputs, structure.batched, strict=True)]
                _, outputs = run_deployed(self.small, some, ())
                found = self._whole.run({name: x.numpy() for name, x in zip(self._whole.inputs, some, strict=True)})
                apart = {name: _Differences(step=self._step(name)) for name in structure.outputs}
                for (name, counts), expected in zip(apart.items(), outputs, strict=True):
                    self._add(name, counts, found[name], expected)
                self._check_end_to_end(apart, f" in batches of {size}")

    def result(self) -> tuple[RuntimeTensor, ...]:
        """The counts so far."""
        owners = {tensor.value: tensor for tensor in self._tensors}
        return tuple(self._tensor(name, owners.get(name), alone) for name, alone in self._alone.items())

    def _tensor(self, name: str, owner: MappedTensor | None, alone: _Differences) -> RuntimeTensor:
        whole = self._end_to_end.get(name, _Differences())
        return RuntimeTensor(
            name=name if owner is None else owner.of,
            kind="output" if owner is None else KINDS[owner.kind],
            exact=False,
            values=alone.values,
            differing=alone.differing,
            relative_error=alone.relative_error,
            differing_end_to_end=whole.differing,
            relative_error_end_to_end=whole.relative_error,
            predictions_end_to_end=whole.predictions,
            output=name if name in self._end_to_end else None,
            steps=Steps(
                alone.step is not None, alone.largest_steps, alone.mean_steps, whole.largest_steps, whole.mean_steps
            ),
        )

    def _step(self, value: str) -> float | None:
        grid = self._grids.get(value)
        return None if grid is None else grid.step

    def _add(self, name: str, counts: _Differences, found: Array, expected: Tensor) -> Tensor:
        if found.shape != tuple(expected.shape):
            raise VerificationError(
                f"{name}: shape {tuple(found.shape)} in {self.name}, {tuple(expected.shape)} in the deployed network"
            )
        one = torch.from_numpy(found)
        counts.add(one, expected)
        return one

    def _check_alone(self) -> None:
        for name, counts in self._alone.items():
            if counts.judged and not counts.largest_steps <= LARGEST_STEPS:
                raise VerificationError(
                    f"{name}: {counts.differing:,} of {counts.values:,} values differ in {self.name}, fed the same "
                    f"values, by up to {counts.largest_steps:.3g} steps; allowed is one"
                )

    def _check_end_to_end(self, outputs: Mapping[str, _Differences], how: str = "") -> None:
        for name, counts in outputs.items():
            if counts.judged and not counts.mean_steps <= MEAN_STEPS_END_TO_END:
                raise VerificationError(
                    f"{name}: when the whole file runs{how}, {self.name} is off by {counts.mean_steps:.3g} steps in "
                    f"the mean, and allowed are {MEAN_STEPS_END_TO_END:.0f}; every layer by itself is within one step, "
                    "so that differences add up, or it computes something else where it combines operations"
                )


def _numbers(value: Tensor, grid: Grid | None) -> Tensor:
    """A value of the deployed program as the file holds it: codes as numbers."""
    return value if grid is None else value * torch.tensor(grid.step)
