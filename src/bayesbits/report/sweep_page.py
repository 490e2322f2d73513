"""The page about a sweep: metric over cost with mean and spread over seeds, and a table of all settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from bayesbits.recipes.run_folder import write
from bayesbits.report.formatting import format_bytes, format_duration, format_number_of
from bayesbits.report.page import environment
from bayesbits.report.pareto_figure import pareto_figure
from bayesbits.sweeps.estimate import cost_text, estimate_text
from bayesbits.sweeps.summary import SummaryRow, summarize


def write_sweep_page(folders: Sequence[str | Path], path: str | Path) -> Path:
    """Write one HTML page about several finished runs; returns its path.

    Runs that differ in their seed alone are one row and one point, with mean and standard error.

    Args:
        folders: The folders of the runs.
        path: The file to write.

    Raises:
        FileNotFoundError: If a run is not finished.
        ValueError: If there is no run, or a file is damaged.
    """
    path = Path(path)
    write(path, render_sweep_page(summarize(folders)))
    return path


def render_sweep_page(rows: Sequence[SummaryRow]) -> str:
    """The whole page."""
    if not rows:
        raise ValueError("there is no finished run to write a page about")
    metrics = dict.fromkeys(row.metric for row in rows)
    metric = "metric" if len(metrics) > 1 else rows[0].metric
    validated = any(row.validation is not None for row in rows)
    recipes = len({row.recipe for row in rows}) > 1
    runs = sum(len(row.seeds) for row in rows)
    return environment().get_template("sweep.html.jinja").render(
        title=f"{', '.join(dict.fromkeys(row.recipe for row in rows))}: {format_number_of(runs, 'run')}",
        runs=format_number_of(runs, "run"),
        settings=format_number_of(len(rows), "setting"),
        metric=metric,
        figures=_figures(rows),
        validated=validated,
        headings=_headings(metric, recipes=recipes, validated=validated),
        table_rows=[_cells(row, metrics=len(metrics) > 1, recipes=recipes, validated=validated) for row in rows],
        text_columns=2 + recipes,
        run_rows=[cells for row in rows for cells in _run_cells(row)],
    )  # fmt: skip


def _figures(rows: Sequence[SummaryRow]) -> list[tuple[str, Markup]]:
    """A figure for each data set and metric, with its title."""
    groups: dict[tuple[str, str], list[SummaryRow]] = {}
    for row in rows:
        groups.setdefault((row.data, row.metric), []).append(row)
    found = []
    for number, ((data, metric), group) in enumerate(groups.items()):
        models = ", ".join(dict.fromkeys(row.model for row in group))
        found.append((f"{models} on {data}: {metric} and bit operations", pareto_figure(group, f"pareto-{number}")))
    return found


def _headings(metric: str, *, recipes: bool, validated: bool) -> tuple[str, ...]:
    names = (*(["recipe"] * recipes), "method", "settings", metric, *(["validation"] * validated), "float")
    return (*names, "relative BOPs", "weights", "training", "seeds")


def _cells(row: SummaryRow, *, metrics: bool, recipes: bool, validated: bool) -> tuple[str, ...]:
    """The cells of a setting; where there are several `metrics`, the value has the name of its own."""
    score = f"{row.metric} {row.score_text}" if metrics else row.score_text
    found = [*([row.validation] * validated), row.float_score]
    others = ["-" if one is None else estimate_text(one, row.unit) for one in found]
    return (
        *([row.recipe] * recipes), row.method, row.own_label or "-", score, *others, cost_text(row.relative_bops),
        format_bytes(row.weight_bytes.mean), format_duration(row.seconds.mean), str(len(row.seeds)),
    )  # fmt: skip


def _run_cells(row: SummaryRow) -> list[tuple[str, ...]]:
    numbers = zip(row.folders, row.seeds, row.score.values, row.relative_bops.values, strict=True)
    return [
        (folder.name, str(seed), f"{score:.2f}{row.unit}" if row.unit else f"{score:.4g}", f"{cost:.3g}%")
        for folder, seed, score, cost in numbers
    ]
