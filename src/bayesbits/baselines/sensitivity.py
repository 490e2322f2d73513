"""The paper's baseline: the widths of tensors are lowered one after the other, the least sensitive tensors first.

1. All tensors have 16 bits. Each one alone is set to a lower width, and the network is scored.
2. These changes are sorted by the score, the least harmful first. The accuracy on few examples has few different
   values: between equal ones the likelihood of the labels decides, and then the change that saves more comes first.
3. The changes are made one after the other, and the network is scored after each: the path.
4. The points of the path that no other point dominates are the front.

The paper has one lower width. Here there may be several, sorted together; a change is left out where its tensor has a
lower width already. Nothing is learned, and ranges stay as they are calibrated.

Batches are the outer loop: activations before the changed tensor are computed once for each batch
(`sensitivity_cache`), and scores can be saved after each batch, to resume from later (`sensitivity_scores`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesbits.baselines.sensitivity_scores import Measurement, ScoreFunction, Widths
from bayesbits.compression.budget import Budget, as_budget
from bayesbits.compression.compressor import Compressor, check_compressor, check_gated
from bayesbits.compression.planning import read_widths
from bayesbits.compression.smallest_plan import reachable_widths
from bayesbits.posttraining.examples import take_batches
from bayesbits.posttraining.front_points import read_point
from bayesbits.posttraining.losses import COMPARISONS, float_outputs, over_tensors
from bayesbits.posttraining.quantizer_state import check_evaluation_mode, quantizers_restored
from bayesbits.records.front import Front, Point
from bayesbits.records.plan import Plan
from bayesbits.records.serialization import Record

REFERENCE_BITS = 16


@dataclass(frozen=True)
class Lowering:
    """A change of one tensor to a lower width, with all others at 16 bits."""

    tensor: str
    """The tensor's name."""
    bits: int
    """The lower width."""
    score: float
    """The network's score after this change alone."""

    def __str__(self) -> str:
        return f"{self.tensor} -> {self.bits}"


@dataclass(frozen=True)
class Sensitivity(Record):
    """The sensitivity of every tensor, and the path of plans that follows from it; `print` shows both.

    Args:
        reference: The score with every tensor at 16 bits.
        alone: The change of every tensor alone to every lower width, the least harmful first.
        path: The points after each change on top of those before, from the reference on.
        within: With a budget, the point of the path with the highest score among those within it.
        version: The version of the JSON form.

    Example::

        >>> import bayesbits as bb
        >>> from bayesbits.baselines.sensitivity import Lowering
        >>> from bayesbits.records.front import Point
        >>> path = tuple(Point(bb.Plan({"0.weight": bits}), bits * 100 / 32, {}, score=90.0) for bits in (16, 4))
        >>> found = bb.baselines.Sensitivity(90.0, (Lowering("0.weight", 4, 80.0),), path)
        >>> [str(change) for change in found.changes], found.front.points[0].relative_bops
        (['0.weight -> 4'], 12.5)
    """

    VERSION: ClassVar[int] = 1

    reference: float
    """The score with every tensor at 16 bits."""
    alone: tuple[Lowering, ...]
    """The change of every tensor alone to every lower width, the least harmful first."""
    path: tuple[Point, ...]
    """The points after each change on top of those before, from the reference on."""
    within: Point | None = None
    """With a budget, the point of the path with the highest score among those within it."""
    version: int = VERSION
    """The version of the JSON form."""

    @property
    def front(self) -> Front:
        """The points of the path that no other point dominates."""
        return Front(self.path).pareto()

    @property
    def changes(self) -> tuple[Lowering, ...]:
        """The changes that led to the points of the path after the first; those that lower nothing are left out."""
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
    budget: Budget | str | None = None,
    loss: str = "labels",
    score_fn: ScoreFunction | None = None,
    path: Path | str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Sensitivity:
    """Measure the sensitivity of every tensor, and lower their widths in that order.

    After the call the compressor is unchanged.

    Args:
        compressor: The compressor of a network in evaluation mode, with calibrated ranges.
        batches: With `loss="labels"` pairs of inputs and labels, with `loss="output"` inputs alone.
        widths: The lower widths.
        budget: The most that a plan may cost, such as "2% bops" or "500 kB": `within` is the point of the path with the
            highest score among those within it.
        loss: "labels" scores the network with labels. "output" scores it by minus the divergence of its probabilities
            from those of the float network.
        score_fn: A function of the network's output and the labels that returns the mean score of a batch, higher is
            better. By default it is the accuracy, and the likelihood of the labels decides between equal accuracies.
        path: A file to which scores are saved after each batch, and from which a call with the same arguments resumes.
        progress: A function that is called with a message after each batch.

    Returns:
        The sensitivities and the path of plans; `front` has its best points.

    Raises:
        BudgetError: The budget is below the cost with every tensor at the lowest of the widths; nothing was measured.
        ValueError: If an argument is not known, the ranges are not calibrated, the network is in training mode, no
            width can be lowered, or the file holds scores of another measurement.

    Example::

        >>> import torch
        >>> import bayesbits as bb
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
        >>> x = torch.randn(32, 4)
        >>> compressor = bb.attach(model, x)
        >>> compressor.calibrate([x], "mse")
        >>> found = bb.baselines.sensitivity(compressor, [x], widths=(4,), loss="output")
        >>> len(found.alone), found.path[-1].plan.bits["0.weight"]
        (3, 4)
    """
    check_compressor(compressor, "sensitivity")
    check_gated(compressor, "sensitivity")
    limit = as_budget(budget, "budget")
    if loss not in ("labels", "output"):
        raise ValueError(f"loss is {loss!r}; it is one of labels, output")
    if score_fn is not None and loss == "output":
        raise ValueError("score_fn compares with labels, and loss is 'output'; give only one of them")
    attachment = compressor.attachment
    check_evaluation_mode(compressor.model, attachment)
    if not attachment.calibrated:
        raise ValueError("the ranges are not known yet: call compressor.calibrate(batches, 'mse') first")
    changes = _changes(compressor, widths)
    if limit is not None:
        lowest = dict(sorted(changes, key=lambda change: -change[1]))
        reachable_widths(attachment, limit, _plan(compressor, lowest))
    inputs, labels = take_batches(batches, labeled=loss == "labels", without="loss='output'")
    targets = labels if loss == "labels" else float_outputs(compressor, inputs)
    score_fns = (score_fn,) if score_fn else (accuracy, likelihood) if loss == "labels" else (_agreement,)
    reference = {tensor: REFERENCE_BITS for tensor, _ in changes}
    measurement = Measurement(
        compressor, inputs, targets, score_fns, about=f"{changes} {' '.join(map(_name, score_fns))}",
        path=None if path is None else Path(path), progress=progress,
    )  # fmt: skip
    with quantizers_restored(attachment):
        for gate in attachment.channel_gates.values():
            gate.fix(torch.ones_like(gate.may_close))
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
    affordable = [point for point in points if limit and limit.allows(compressor.cost(point.plan, limit.table))]
    within = max(affordable, key=_score_of, default=None)
    return Sensitivity(scores[0][0], tuple(lowerings), tuple(points), within)


def accuracy(output: Tensor, labels: Tensor) -> Tensor:
    """The percentage of examples whose largest output is that of their label."""
    return 100 * (output.argmax(-1) == labels).double().mean()


def likelihood(output: Tensor, labels: Tensor) -> Tensor:
    """The mean log-probability of the labels, which is minus the cross-entropy."""
    return -F.cross_entropy(output.double().flatten(0, -2), labels.flatten().long())


def cumulative(reference: Widths, changes: list[tuple[str, int]]) -> list[Widths]:
    """The reference, and the widths after each change in turn; changes that lower nothing are left out."""
    steps = [reference]
    for tensor, bits in changes:
        if bits < steps[-1][tensor]:
            steps.append({**steps[-1], tensor: bits})
    return steps


def _harm(scores: tuple[float, ...]) -> tuple[float, ...]:
    """The key that changes are sorted by."""
    score, *finer = scores  # the first is rounded before a finer one decides: its sum over batches is not exact
    return (-round(score, 9), -finer[0]) if finer else (-score,)


def _score_of(point: Point) -> float:
    assert point.score is not None
    return point.score


def _name(score_fn: ScoreFunction) -> str:
    return getattr(score_fn, "__qualname__", type(score_fn).__name__)


def _agreement(output: Tensor, target: Tensor) -> Tensor:
    return -over_tensors(COMPARISONS["output"])(output, target)


def _changes(compressor: Compressor, widths: tuple[int, ...]) -> list[tuple[str, int]]:
    """Every tensor whose width is not fixed, with every lower width that its rules allow."""
    changes = [
        (name, bits)
        for name, quantizer in compressor.attachment.quantizers.items()
        if quantizer.mode == "learning"
        for bits in widths
        if bits in quantizer.bits and bits < REFERENCE_BITS
    ]
    if not changes:
        raise ValueError(
            f"no tensor can be lowered to {', '.join(map(str, widths))} bits: all are fixed, or the spec has other "
            f"widths ({', '.join(map(str, compressor.spec.bits))})"
        )
    return changes


def _plan(compressor: Compressor, widths: Widths) -> Plan:
    """The plan with these widths; other tensors keep their own."""
    return Plan({**read_widths(compressor.attachment), **widths})
