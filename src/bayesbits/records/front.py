"""What a sweep found: plans at different costs, each with its ranges and its score.

A `Front` is a record like the plans in it, with a versioned JSON form, and holds all that is needed to make any of its
points the final decision for a network with the same weights; see `posttraining.restore`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from bayesbits.records.plan import Plan
from bayesbits.records.serialization import Record, freeze_mappings


@dataclass(frozen=True)
class Range:
    """The range of one quantizer."""

    log_beta: tuple[float, ...]
    """The logarithm of the range's end, as the quantizer keeps it: restoring is exact. One, or one for each channel."""
    signed: bool
    """Whether the range reaches as far below zero."""


@dataclass(frozen=True)
class Point:
    """One plan, what it costs and what it is worth."""

    plan: Plan
    """What was decided."""
    relative_bops: float
    """Its bit operations in percent of those at 32 x 32 bits."""
    ranges: Mapping[str, Range]
    """The ranges that belong to it, by the tensor's name."""
    score: float | None = None
    """What it is worth, the higher the better; None where nothing was there to say."""
    mu: float | None = None
    """The weight of the penalty that led here; None where there was none."""

    def __post_init__(self) -> None:
        freeze_mappings(self)


@dataclass(frozen=True)
class Front(Record):
    """The points of a sweep, in the order in which they were found."""

    VERSION: ClassVar[int] = 1

    points: tuple[Point, ...]
    """The points."""
    version: int = VERSION
    """The version of the JSON form."""

    def pareto(self) -> Front:
        """The points that no other beats, the cheapest first: whatever costs more than another scores more too."""
        best: list[Point] = []
        for point in sorted(self.points, key=lambda point: (point.relative_bops, -_score(point))):
            if not best or _score(point) > _score(best[-1]):
                best.append(point)
        return Front(tuple(best))

    def within(self, relative_bops: float) -> Point:
        """The best point that costs at most this much, in percent; a ValueError where there is none."""
        affordable = [point for point in self.points if point.relative_bops <= relative_bops]
        if not affordable:
            cheapest = min((point.relative_bops for point in self.points), default=float("nan"))
            raise ValueError(f"no point costs at most {relative_bops:g}%; the cheapest of them costs {cheapest:.4g}%")
        return max(affordable, key=_score)

    def __str__(self) -> str:
        lines = [f"{'mu':>10}  {'BOPs %':>8}  {'score':>10}"]
        for point in self.points:
            mu = "" if point.mu is None else f"{point.mu:g}"
            score = "" if point.score is None else f"{point.score:.6g}"
            lines.append(f"{mu:>10}  {point.relative_bops:8.4f}  {score:>10}".rstrip())
        return "\n".join(lines)


def _score(point: Point) -> float:
    if point.score is None:
        raise ValueError("points without a score cannot be compared: give `evaluate` where the front is made")
    return point.score
