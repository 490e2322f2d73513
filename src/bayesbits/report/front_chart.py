"""The chart of a front: the points of post-training, their score over their cost, and which of them are the best."""

from __future__ import annotations

from bayesbits.recipes import Recipe
from bayesbits.records.front import Front, Point
from bayesbits.report.chart import Chart, Series


def front_chart(front: Front, recipe: Recipe | None) -> Chart | None:
    """Score over relative bit operations; None where no point has a score."""
    scored = Front(tuple(point for point in front.points if point.score is not None))
    if not scored.points:
        return None
    best = scored.pareto().points
    others = [point for point in scored.points if point not in best]
    percent = recipe is None or recipe.task.has_logits
    series = [
        Series("the front", [_place(point) for point in best], 1, dots=True, notes=[_note(point) for point in best]),
        Series(
            "other points", [_place(point) for point in others], 2, line=False, notes=[_note(one) for one in others]
        ),
    ]
    return Chart(
        "Score over cost", "relative bit operations, %", series, unit="%" if percent else "", x_unit="%",
        x_logarithmic=True, from_zero=False,
    )  # fmt: skip


def _place(point: Point) -> tuple[float, float]:
    return point.relative_bops, point.score or 0.0


def _note(point: Point) -> str:
    found = "" if point.mu is None else f", mu {point.mu:.3g}"
    return f"score {point.score:.5g} at {point.relative_bops:.3g}% of BOPs{found}"
