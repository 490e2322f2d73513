"""The chart of a front: the points of post-training, their score over their cost, and which of them are the best.

The float network is a line, and the final network of the run, where a budget chose one, a point of its own.
"""

from __future__ import annotations

from bayesbits.recipes import Recipe, Result
from bayesbits.records.front import Front, Point
from bayesbits.report.chart import Chart, Series


def front_chart(front: Front, recipe: Recipe | None, result: Result | None = None) -> Chart | None:
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
    name, reference = "Score", None
    if result is not None and (score := result.scores[0]).higher_is_better:
        name = f"Test {score.name}"
        reference = None if score.float_value is None else ("float network", score.float_value)
        note = f"the final network: {score.text} at {result.relative_bops:.3g}% of BOPs"
        series.append(Series("final network", [(result.relative_bops, score.value)], 3, line=False, notes=[note]))
    return Chart(
        f"{name} over cost", "relative bit operations, %", series, unit="%" if percent else "", x_unit="%",
        x_logarithmic=True, from_zero=False, reference=reference, note="Higher is better; left is cheaper.",
    )  # fmt: skip


def _place(point: Point) -> tuple[float, float]:
    return point.relative_bops, point.score or 0.0


def _note(point: Point) -> str:
    found = "" if point.mu is None else f", mu {point.mu:.3g}"
    return f"score {point.score:.5g} at {point.relative_bops:.3g}% of BOPs{found}"
