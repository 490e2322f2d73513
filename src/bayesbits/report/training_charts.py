"""The charts over the run: losses, cost against the budget, metrics on validation data, and the penalty's weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bayesbits.report.chart import Chart, Series
from bayesbits.report.run_data import Run
from bayesbits.report.training_curves import Curves

_COSTS = {
    "expected_relative_bops": "expected",
    "relative_bops": "counted",
    "target_relative_bops": "target",
}
_MARKED = 12  # points of lines that are marked; more marks would hide the lines
STAGES = {"float": "float training", "search": "search", "finetune": "fine-tuning"}
"""The stages of a run as the page calls them."""


def training_charts(run: Run) -> list[Chart]:
    """The charts that the metrics of a run allow; empty where it has none."""
    curves = run.curves
    names = curves.names()
    charts = [
        _chart(curves, "Loss", [("task loss", "task_loss", False)], logarithmic=True),
        _chart(
            curves, "Bit operations", [(text, name, False) for name, text in _COSTS.items()], unit="%",
            logarithmic=True, limit=_limit(run), search_only=True,
        ),
    ]  # fmt: skip
    validation = [name for name in names if name.startswith("validation_")]
    for name in validation:
        title = name.removeprefix("validation_").replace("_", " ")
        unit = unit_of(run, title)
        charts.append(
            _chart(curves, f"{title[:1].upper()}{title[1:]} on held-back data", [(title, name, True)], unit=unit,
                   from_zero=False)
        )  # fmt: skip
    weights = [name for name in names if name.startswith("mu_")]
    if weights:
        rows = [(f"mu of {name.removeprefix('mu_').replace('_', ' ')}", name, False) for name in weights]
        charts.append(_chart(curves, "Weight of the penalty, mu", rows, logarithmic=True, search_only=True))
    return [chart for chart in charts if chart is not None]


def _chart(
    curves: Curves, title: str, rows: Sequence[tuple[str, str, bool]], *, unit: str = "", logarithmic: bool = False,
    limit: tuple[str, float] | None = None, search_only: bool = False, from_zero: bool = True,
) -> Chart | None:  # fmt: skip
    """A chart with the stages side by side; None where no line has a point. A row: name, key, whether evaluated."""
    stages = [stage for stage in curves.stages if not search_only or stage.name == "search"]
    starts, start = [], 0.0
    for stage in stages:
        starts.append(start)
        start += stage.epochs
    series = []
    for number, (name, key, evaluated) in enumerate(rows, start=1):
        points = [
            (begin + point.epoch, point.values[key])
            for begin, stage in zip(starts, stages, strict=True)
            for point in (stage.evaluations if evaluated else stage.points)
            if key in point.values
        ]
        if points:
            series.append(Series(name, points, number))
    if all(len(one.points) <= _MARKED for one in series):
        series = [replace(one, dots=True) for one in series]
    chart = Chart(
        title, "epochs", series, unit=unit, logarithmic=logarithmic, from_zero=from_zero, limit=limit,
        parts=[(STAGES.get(stage.name, stage.name), begin) for begin, stage in zip(starts, stages, strict=True)]
        if len(stages) > 1 else (), whole=True,
    )  # fmt: skip
    return chart if chart.shown else None


def _limit(run: Run) -> tuple[str, float] | None:
    """The budget in percent of the bit operations, where it has one."""
    budget = None if run.recipe is None else run.recipe.search.budget
    if budget is None:
        return None
    if budget.relative_bops is not None:
        return "budget", budget.relative_bops
    if budget.bops is not None and run.float_cost is not None:
        return "budget", 100 * budget.bops / run.float_cost.bops
    return None


def unit_of(run: Run, name: str) -> str:
    """The unit of a metric by its name."""
    scores = run.result.scores if run.result is not None else ()
    return next((score.unit for score in scores if score.name.lower() == name), "%" if name == "accuracy" else "")
