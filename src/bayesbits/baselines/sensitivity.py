"""The paper's baseline: lower tensors one after the other, those first that alone do least harm.

1. With every tensor at 16 bits, each one alone is set to a lower width, and the network is scored.
2. All such changes are sorted by the score, the least harmful first. Where the score is the accuracy, of which few
   examples have few values, the labels' likelihood decides between equals; then what saves most goes first.
3. One after the other they are made, each staying, and the network is scored after each: the path.
4. The points of the path that no other beats are the front.

The paper has one lower width. Here there may be several, sorted together; a change to a width that its tensor has gone
below already is left out. Nothing learns, and ranges stay as they are calibrated.

Batches are the outer loop, so that activations before the changed tensor are computed once for each batch (`replay`),
and what was measured can be written to a file after each batch, to go on from later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesbits.baselines.measurement import Measurement, ScoreFunction, Widths
from bayesbits.compression.compressor import Compressor, check_compressor
from bayesbits.posttraining.examples import take_batches
from bayesbits.posttraining.front_points import read_point
from bayesbits.posttraining.losses import divergence, float_log_probabilities
from bayesbits.posttraining.quantizer_state import check_evaluation_mode, quantizers_restored
from bayesbits.records.front import Front, Point
from bayesbits.records.plan import Plan
from bayesbits.records.serialization import Record

REFERENCE_BITS = 16


@dataclass(frozen=True)
class Lowering:
    """One tensor alone at a lower width."""

    tensor: str
    """The tensor's name."""
    bits: int
    """The lower width."""
    score: float
    """The network's score with it."""

    def __str__(self) -> str:
        return f"{self.tensor} -> {self.bits}"


@dataclass(frozen=True)
class Sensitivity(Record):
    """What was found."""

    VERSION: ClassVar[int] = 1

    reference: float
    """The score with every tensor at 16 bits."""
    alone: tuple[Lowering, ...]
    """Every tensor alone, at every lower width; the least harmful first."""
    path: tuple[Point, ...]
    """What was reached after each change, from the reference on."""
    version: int = VERSION
    """The version of the JSON form."""

    @property
    def front(self) -> Front:
        """The points of the path that no other beats."""
        return Front(self.path).pareto()

    @property
    def changes(self) -> tuple[Lowering, ...]:
        """The change that led to each point of the path but the first, in order; those that lower nothing are out."""
        present = dict(self.path[0].plan.bits)
        made = []
        for lowering in self.alone:
            if lowering.bits < present[lowering.tensor]:
                present[lowering.tensor] = lowering.bits
                made.append(lowering)
        return tuple(made)

    def last_change(self, point: Point) -> str:
        """The change that led to a point of the path, in words."""
        place = self.path.index(point)
        return str(self.changes[place - 1]) if place else f"all at {REFERENCE_BITS} bits"

    def __str__(self) -> str:
        width = max(len(str(lowering)) for lowering in self.alone)
        lines = [f"with every tensor at {REFERENCE_BITS} bits the score is {self.reference:.6g}", ""]
        lines += ["each tensor alone, the least harmful first:"]
        lines += [f"  {lowering!s:{width}}  {lowering.score:>10.6g}" for lowering in self.alone]
        lines += ["", "one after the other, the points that no other beats:", "    BOPs %       score  the last change"]
        for point in self.front.points:
            lines.append(f"  {point.relative_bops:8.4f}  {point.score:>10.6g}  {self.last_change(point)}")
        return "\n".join(lines)


def sensitivity(
    compressor: Compressor,
    batches: Iterable[Any],
    widths: tuple[int, ...] = (8, 4, 2),
    *,
    loss: str = "labels",
    score_fn: ScoreFunction | None = None,
    path: Path | str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Sensitivity:
    """Measure how sensitive every tensor is, and lower them in that order to `widths`.

    With `loss="labels"` a batch is a pair of inputs and labels, and `score_fn(output, labels)` is the accuracy unless
    another is given; between equal accuracies the labels' likelihood decides. With "output" it is what the model is
    called with, and the score is minus the divergence from the float network's probabilities. Scores are means over a
    batch, the higher the better. To the file `path` is written what was measured, and from there a call with the same
    arguments goes on. Afterwards the compressor is what it was.
    """
    check_compressor(compressor, "sensitivity")
    if loss not in ("labels", "output"):
        raise ValueError(f"loss is {loss!r}; it is one of labels, output")
    if score_fn is not None and loss == "output":
        raise ValueError("score_fn compares with labels, and loss is 'output'; give one of them")
    attachment = compressor.attachment
    check_evaluation_mode(compressor.model, attachment)
    if not attachment.calibrated:
        raise ValueError("the ranges are not known yet: call compressor.calibrate(batches, 'mse') first")
    changes = _changes(compressor, widths)
    inputs, labels = take_batches(batches, labeled=loss == "labels", without="loss='output'")
    targets = labels if loss == "labels" else float_log_probabilities(compressor, inputs)
    score_fns = (score_fn,) if score_fn else (accuracy, likelihood) if loss == "labels" else (_agreement,)
    reference = {tensor: REFERENCE_BITS for tensor, _ in changes}
    measurement = Measurement(
        compressor, inputs, targets, score_fns, about=f"{changes} {' '.join(map(_name, score_fns))}",
        path=None if path is None else Path(path), progress=progress,
    )  # fmt: skip
    with quantizers_restored(attachment):
        for gate in attachment.channel_gates.values():
            gate.fix(torch.ones_like(gate.gates.logits, dtype=torch.bool))
        alone = [reference] + [{**reference, tensor: bits} for tensor, bits in changes]
        scores = measurement.scores("alone", alone)
        savings = [compressor.cost(_plan(compressor, one)).relative_bops for one in alone[1:]]
        order = sorted(range(len(changes)), key=lambda index: (*_harm(scores[index + 1]), savings[index]))
        steps = cumulative(reference, [changes[index] for index in order])
        path_scores = measurement.scores("path", steps)
        points = [
            read_point(compressor, _plan(compressor, step), score=score)
            for step, (score, *_) in zip(steps, path_scores, strict=True)
        ]
    lowerings = [Lowering(*changes[index], scores[index + 1][0]) for index in order]
    return Sensitivity(scores[0][0], tuple(lowerings), tuple(points))


def accuracy(output: Tensor, labels: Tensor) -> Tensor:
    """The part of the examples whose largest output is that of their label, in percent."""
    return 100 * (output.argmax(-1) == labels).double().mean()


def likelihood(output: Tensor, labels: Tensor) -> Tensor:
    """The mean logarithm of the labels' probabilities: minus the cross-entropy."""
    return -F.cross_entropy(output.double().flatten(0, -2), labels.flatten().long())


def cumulative(reference: Widths, changes: list[tuple[str, int]]) -> list[Widths]:
    """The widths after each change that lowers one, each change staying; the reference first."""
    steps = [reference]
    for tensor, bits in changes:
        if bits < steps[-1][tensor]:
            steps.append({**steps[-1], tensor: bits})
    return steps


def _harm(scores: tuple[float, ...]) -> tuple[float, ...]:
    """What changes are sorted by."""
    score, *finer = scores  # where a finer one follows, the first is rounded: its sum over the batches is not exact
    return (-round(score, 9), -finer[0]) if finer else (-score,)


def _name(score_fn: ScoreFunction) -> str:
    return getattr(score_fn, "__qualname__", type(score_fn).__name__)


def _agreement(output: Tensor, target: Tensor) -> Tensor:
    return -divergence(output, target)


def _changes(compressor: Compressor, widths: tuple[int, ...]) -> list[tuple[str, int]]:
    """Every tensor whose width is open to choice, with every lower width that its rules allow."""
    changes = [
        (name, bits)
        for name, quantizer in compressor.attachment.quantizers.items()
        if quantizer.mode == "learning"
        for bits in widths
        if bits in quantizer.bits and bits < REFERENCE_BITS
    ]
    if not changes:
        raise ValueError(
            f"no tensor can be lowered to {', '.join(map(str, widths))} bits: all are fixed, or the spec's widths are "
            f"others ({', '.join(map(str, compressor.spec.bits))})"
        )
    return changes


def _plan(compressor: Compressor, widths: Widths) -> Plan:
    """The plan of these widths; what is not among them keeps its own."""
    return Plan({**compressor.plan().bits, **widths})
