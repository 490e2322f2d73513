"""The `Front`: the result of a sweep, which is plans at different costs, each with its ranges and its score.

A `Front` has a versioned JSON form. It holds everything that makes any of its points the final decision for a network
with the same weights; see `posttraining.restore`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from bayesbits.records.plan import Plan
from bayesbits.records.serialization import Record, freeze_mappings
from bayesbits.utils.tables import text_table


@dataclass(frozen=True)
class Range:
    """The range of one quantizer."""

    log_beta: tuple[float, ...]
    """The logarithm of the end of the range, as the quantizer stores it: one number, or one for each channel."""
    signed: bool
    """Whether the range has values below zero; otherwise it begins at zero."""
    log_alpha: float | None = None
    """The logarithm of minus the lower end of an asymmetric range; None where a signed range is symmetric."""

    @property
    def kind(self) -> str:
        """ "unsigned", "symmetric" or "asymmetric"."""
        return "asymmetric" if self.log_alpha is not None else "symmetric" if self.signed else "unsigned"


@dataclass(frozen=True)
class Point:
    """One plan with its cost, its ranges and its score."""

    plan: Plan
    """The widths and channels."""
    relative_bops: float
    """Its bit operations in percent of those at 32 x 32 bits."""
    ranges: Mapping[str, Range]
    """The ranges that belong to it, by the tensor's name."""
    score: float | None = None
    """Its score, the higher the better; None where it was not evaluated."""
    mu: float | None = None
    """The weight of the penalty with which it was found; None where there was no penalty."""

    def __post_init__(self) -> None:
        freeze_mappings(self)


@dataclass(frozen=True)
class Front(Record):
    """The points of a sweep, in the order in which they were found; `print` shows them as a table.

    Args:
        points: The points. Each has a `plan`, its `relative_bops` (percent), its `ranges`, and a `score` and the weight
            `mu` of the penalty, where there are some.
        version: The version of the JSON form.

    Example::

        >>> import bayesbits as bb
        >>> from bayesbits.records.front import Point
        >>> found = [(8, 6.25, 93.0), (4, 3.12, 93.5), (2, 1.56, 80.0)]
        >>> front = bb.Front(tuple(Point(bb.Plan({"w": bits}), cost, {}, score) for bits, cost, score in found))
        >>> [point.score for point in front.pareto().points]
        [80.0, 93.5]
        >>> front.within(relative_bops=2).plan.bits["w"]
        2
    """

    VERSION: ClassVar[int] = 1

    points: tuple[Point, ...]
    """The points."""
    version: int = VERSION
    """The version of the JSON form."""

    def pareto(self) -> Front:
        """The points than which no other point is cheaper and scores as much, the cheapest first.

        Raises:
            ValueError: If a point has no score.
        """
        best: list[Point] = []
        for point in sorted(self.points, key=lambda point: (point.relative_bops, -_score(point))):
            if not best or _score(point) > _score(best[-1]):
                best.append(point)
        return Front(tuple(best))

    def within(self, relative_bops: float) -> Point:
        """The point with the highest score among those that cost at most this much.

        Args:
            relative_bops: The most bit operations, in percent of those at 32 x 32 bits.

        Raises:
            ValueError: If every point costs more, or a point has no score.
        """
        affordable = [point for point in self.points if point.relative_bops <= relative_bops]
        if not affordable:
            cheapest = min((point.relative_bops for point in self.points), default=float("nan"))
            raise ValueError(f"no point costs at most {relative_bops:g}%; the cheapest of them costs {cheapest:.4g}%")
        return max(affordable, key=_score)

    def __str__(self) -> str:
        rows = [
            ("" if point.mu is None else f"{point.mu:g}", f"{point.relative_bops:.4f}")
            + ("" if point.score is None else f"{point.score:.6g}",)
            for point in self.points
        ]
        return text_table(("mu", "BOPs %", "score"), rows, left=())


def _score(point: Point) -> float:
    if point.score is None:
        raise ValueError("points without a score cannot be compared: give `evaluate` where the front is made")
    return point.score
