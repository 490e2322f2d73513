"""The page about a run: one HTML file without scripts, which loads nothing and can be read offline.

The template `templates/page.html.jinja` has the text and the order of the sections, `style.css` the appearance,
`page_tables` the rows of the tables. Everything that is not `Markup` is escaped.
"""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from bayesbits.recipes.result import POSTTRAINING
from bayesbits.recipes.run_folder import POSTTRAIN, RECIPE, REPORT, write
from bayesbits.report import page_tables as tables
from bayesbits.report.formatting import format_reduction
from bayesbits.report.layer_figure import layer_figures
from bayesbits.report.run_data import Run, read_run
from bayesbits.report.svg import printable
from bayesbits.report.training_figure import training_figure


def write_report(folder: str | Path) -> Path:
    """Write `report.html` into the folder of a finished run; returns its path."""
    path = Path(folder) / REPORT
    write(path, render_page(read_run(folder)))
    return path


def environment() -> Environment:
    """What fills the templates: everything that is not `Markup` is escaped."""
    return Environment(
        loader=PackageLoader("bayesbits", "report/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render_page(run: Run) -> str:
    """The whole page."""
    return (
        environment()
        .get_template("page.html.jinja")
        .render(
            run=run,
            tables=tables,
            title=f"{run.recipe.name}: {format_reduction(100, run.cost.relative_bops, 'fewer bit operations')}",
            bit_widths=sorted(
                {bits for layer in run.cost.layers for bits in (layer.weight_bits, layer.activation_bits)}
            ),
            removed_channels=len(run.plan.removed(run.topology)),
            removable_channels=sum(group.size for group in run.topology.removable_groups),
            layer_figures=layer_figures(tables.layer_bars(run)),
            training_figure=training_figure(run.stages),
            repeat_command=_repeat_command(run),
            posttrained=run.result.method == POSTTRAINING,
            folder=quote(str(run.folder)),
            RECIPE=RECIPE,
            POSTTRAIN=POSTTRAIN,
        )
    )


def _printable(value: Any) -> Any:
    """What the template does with every value before it is escaped."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _repeat_command(run: Run) -> str:
    """The command that repeats the run from its recipe."""
    if run.result.method == POSTTRAINING:
        budget = f"{run.cost.relative_bops * 1.001:.4g}"  # rounded, but not below the cost of the point
        return f"bayesbits posttrain {RECIPE} --output again --budget {budget}"
    return f"bayesbits search {RECIPE} --output again"
