"""Deployed network and runtime, place by place, over batches of inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto
from torch import Tensor

from bayesbits.deploy.export.checkpoints import Checkpoint, read_checkpoints
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.verification.record import TOLERANCE, Place, VerificationError
from bayesbits.deploy.verification.reference import run_deployed
from bayesbits.deploy.verification.runtime import Session
from bayesbits.deploy.verification.segments import Cutter, Segment

Array = NDArray[Any]


@dataclass
class _Counts:
    values: int = 0
    differing: int = 0
    differing_end_to_end: int = 0
    relative_error: float = 0.0


class Comparison:
    """Runs an ONNX file whole and in pieces beside the deployed network."""

    def __init__(self, small: DeployedNetwork, model: ModelProto) -> None:
        self.small = small
        integer = {layer.name for layer in small.integer.layers if layer.arithmetic == "integer"}
        checkpoints = read_checkpoints(model)
        self._check_nodes(checkpoints)
        cutter = Cutter(model, checkpoints, integer)
        self.segments = cutter.segments
        self._places = {checkpoint.value: checkpoint for checkpoint in checkpoints}
        self._pieces = [Session(cutter.piece(segment), threads=1) for segment in self.segments]
        self._whole, self._exposed = Session(model), Session(cutter.exposed())
        self._inputs = [value.name for value in model.graph.input]
        self._outputs = [value.name for value in model.graph.output]
        self._counts = [_Counts() for _ in self.segments]
        self._exact_from_inputs = self._followed_exactly()

    @property
    def places(self) -> tuple[Place, ...]:
        """What was found so far."""
        pairs = zip(self.segments, self._counts, strict=True)
        return tuple(Place(segment.name, segment.kind, segment.exact, **vars(counts)) for segment, counts in pairs)

    def run(self, inputs: list[Tensor]) -> None:
        """Compare one batch; raises at the first place that differs."""
        nodes = {node.name: node for node in self.small.program.graph.nodes}
        wanted = {checkpoint.node for checkpoint in self._places.values()}
        read = {name: nodes[name].all_input_nodes[0].name for name in wanted}
        values, outputs = run_deployed(self.small, inputs, wanted | set(read.values()))
        known = dict(zip(self._inputs, (x.numpy() for x in inputs), strict=True))
        known |= {value: _carried(place, values[place.node]) for value, place in self._places.items()}
        known |= dict(zip(self._outputs, (output.numpy() for output in outputs), strict=True))
        for segment, session, counts in zip(self.segments, self._pieces, self._counts, strict=True):
            found = session.run({name: known[name] for name in session.inputs})
            numbers = None
            if segment.quantized in found and segment.checkpoint is not None:
                numbers = found[segment.quantized], values[read[segment.checkpoint.node]].numpy()
            _judge(segment, counts, found[segment.value], known[segment.value], numbers)
        self._run_whole({name: known[name] for name in self._inputs}, known)

    def _run_whole(self, feeds: dict[str, Array], known: dict[str, Array]) -> None:
        plain, exposed = self._whole.run(feeds), self._exposed.run(feeds)
        followed = zip(self.segments, self._exact_from_inputs, strict=True)
        all_exact = {segment.value for segment, exact in followed if exact}
        for name in self._outputs:
            if not _agree(plain[name], exposed[name], exact=name in all_exact):
                raise VerificationError(
                    f"{name}: onnxruntime computes something else when inner tensors are read as well, so that what "
                    "was compared is not what runs"
                )
        for segment, counts, exact in zip(self.segments, self._counts, self._exact_from_inputs, strict=True):
            differing = int((exposed[segment.value] != known[segment.value]).sum())
            counts.differing_end_to_end += differing
            if exact and differing:
                raise VerificationError(
                    f"{segment.name}: {differing} of {known[segment.value].size} values of the {segment.kind} differ "
                    "between the deployed network and onnxruntime when the whole file runs, but not by themselves"
                )

    def _followed_exactly(self) -> list[bool]:
        """For every segment whether everything in front of it is exact, too."""
        exact = dict.fromkeys(self._inputs, True)
        for segment in self.segments:
            exact[segment.value] = segment.exact and all(exact[source] for source in segment.sources)
        return [exact[segment.value] for segment in self.segments]

    def _check_nodes(self, checkpoints: tuple[Checkpoint, ...]) -> None:
        names = {node.name for node in self.small.program.graph.nodes}
        strange = [checkpoint.of for checkpoint in checkpoints if checkpoint.node not in names]
        if strange:
            raise VerificationError(f"{strange[0]}: the ONNX file was exported from another deployed network")


def _carried(place: Checkpoint, value: Tensor) -> Array:
    """A value as the file has it."""
    array: Array = value.numpy() if place.zero_point is None else (value + place.zero_point).numpy().astype(np.uint8)
    return array


def _judge(
    segment: Segment, counts: _Counts, found: Array, expected: Array, numbers: tuple[Array, Array] | None
) -> None:
    if found.shape != expected.shape:
        raise VerificationError(f"{segment.name}: shape {found.shape} in onnxruntime and {expected.shape} deployed")
    differing = found != expected
    counts.values += differing.size
    counts.differing += int(differing.sum())
    codes = np.issubdtype(expected.dtype, np.integer)
    if segment.exact and differing.any():
        place = tuple(int(i) for i in np.argwhere(differing)[0])
        raise VerificationError(
            f"{segment.name}: {int(differing.sum())} of {differing.size} {'codes' if codes else 'values'} of the "
            f"{segment.kind} differ, fed the same values; the first, at {place}, is {found[place]} in onnxruntime and "
            f"{expected[place]} in the deployed network"
        )
    pairs = ([] if codes else [(found, expected)]) + ([] if numbers is None else [numbers])
    for left, right in pairs:
        error = _relative(left, right)
        counts.relative_error = max(counts.relative_error, error)
        if not error <= TOLERANCE:
            raise VerificationError(
                f"{segment.name}: numbers of the {segment.kind} differ by {error:.1e} of the largest, fed the same "
                f"values; at most {TOLERANCE:.0e} is rounding"
            )
    if codes and np.abs(found.astype(np.int64) - expected.astype(np.int64)).max(initial=0) > 1:
        raise VerificationError(f"{segment.name}: codes of the {segment.kind} differ by more than one")


def _relative(found: Array, expected: Array) -> float:
    if not expected.size:
        return 0.0
    return float(np.abs(found.astype(np.float64) - expected).max() / max(np.abs(expected).max(), 1e-30))


def _agree(one: Array, other: Array, *, exact: bool) -> bool:
    """Whether a file does the same with inner tensors read as without: there float operations may be fused otherwise,
    be off in the last place, and turn a code behind them."""
    return np.array_equal(one, other) if exact else _relative(one, other) <= 100 * TOLERANCE
