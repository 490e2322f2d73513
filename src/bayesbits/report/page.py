"""The page about a run: one HTML file that loads nothing, can be read offline, and is complete without its script.

The template `templates/run.html.jinja` has the text and the order of the sections, `style.css` the appearance and
`script.js` what moves: sorting, filtering, pointing and zooming. Everything that is not `Markup` is escaped, and the
page's content security policy lets no other script run than this one.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from shlex import quote
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from bayesbits.recipes.result import POSTTRAINING
from bayesbits.recipes.run_folder import POSTTRAIN, RECIPE, REPORT, resume_command, write
from bayesbits.report import headline, histogram_figure, layer_errors
from bayesbits.report import page_tables as tables
from bayesbits.report.front_chart import front_chart
from bayesbits.report.gate_figures import gate_strips
from bayesbits.report.layer_table import layers, parts
from bayesbits.report.network_figure import picture, skyline, widest_bits
from bayesbits.report.network_ways import gutter_width
from bayesbits.report.run_data import Run, read_run
from bayesbits.report.svg import printable
from bayesbits.report.training_charts import training_charts
from bayesbits.utils.short_names import shorten_names

_STRIP_NAME = 32
_UNBROKEN_NAME = 6
_GO_ON = "Go on with: "


def write_report(folder: str | Path, path: str | Path | None = None) -> Path:
    """Write the page about a run, `report.html` in its folder or another file; returns its path."""
    path = Path(folder) / REPORT if path is None else Path(path)
    write(path, render_page(read_run(folder)))
    return path


def render_page(run: Run) -> str:
    """The whole page."""
    rows = picture(run, run.topology) if run.topology is not None else []
    numbers = layer_errors.layer_numbers(run)
    strips = gate_strips(next((stage.gates for stage in run.curves.stages if stage.gates), ()))
    names = shorten_names([strip.name for strip in strips], _STRIP_NAME, "…")
    return render(
        "run.html.jinja",
        run=run,
        tables=tables,
        histograms=histogram_figure,
        title=headline.title_of(run),
        verdict=headline.verdict_of(run),
        cards=headline.cards(run),
        reached=headline.progress(run),
        picture=rows,
        gutter=gutter_width([row.row for row in rows]),
        skyline=skyline(rows) if run.plan is not None else None,
        widest=widest_bits(run),
        operands=any(one.role == "operand" for row in rows for one in row.bits),
        residual=any(row.row.begins for row in rows),
        products=run.topology is not None and bool(run.topology.products),
        layers=layers(run),
        parts=parts,
        charts=training_charts(run),
        strips=list(zip(strips, names, strict=True)),
        last_epoch=max((point.epoch for stage in run.curves.stages for point in stage.gates), default=0.0),
        strip_widths={width for stage in run.curves.stages for point in stage.gates for width in point.bits.values()},
        error_charts=layer_errors.error_charts(run.statistics, numbers),
        worst=layer_errors.worst_layers(() if run.statistics is None else run.statistics.layers, numbers),
        front=None if run.front is None else front_chart(run.front, run.recipe, run.result),
        removed=_removed(run),
        repeat_command=_repeat_command(run),
        resume_command=resume_command(run.folder) if run.state is None else run.state.command,
        posttrained=run.result is not None and run.result.method == POSTTRAINING,
        folder=quote(str(run.folder)),
        RECIPE=RECIPE,
        POSTTRAIN=POSTTRAIN,
    )


def render(template: str, **values: Any) -> str:
    """A page from a template, with the style sheet and the script in it."""
    environment = Environment(
        loader=PackageLoader("bayesbits", "report/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"with_code": with_code, "breakable": breakable, "command": command}
    loader = environment.loader
    assert loader is not None
    script = loader.get_source(environment, "script.js")[0]
    style = loader.get_source(environment, "style.css")[0]
    return environment.get_template(template).render(
        script=Markup(script), script_hash=hash_of(script), style=Markup(style), **values
    )


def hash_of(script: str) -> str:
    """The hash by which the content security policy of the page knows its script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def with_code(text: str) -> Markup:
    """A message of the terminal as markup: what is between backquotes is code, and everything is escaped.

    So is the command behind "Go on with:", which ends a message and has no backquotes, to be copied in one piece.
    """
    before, found, way_out = text.partition(_GO_ON)
    parts = printable(f"{before}{found}`{way_out}`" if found else text).split("`")
    if len(parts) % 2 == 0:  # a backquote that is not closed
        return escape(printable(text))
    return Markup().join(
        Markup("<code>{}</code>").format(command(part)) if place % 2 else escape(part)
        for place, part in enumerate(parts)
    )


def command(text: str) -> Markup:
    """A command whose options are not broken behind their hyphens."""
    option = Markup('<span class="option">{}</span>')
    words = printable(text).split(" ")
    return Markup(" ").join(option.format(word) if word.startswith("-") else escape(word) for word in words)


def breakable(name: str) -> Markup:
    """A name that, if it is long, may be broken behind its dots and underscores, rather than anywhere."""
    if len(name) <= _UNBROKEN_NAME:
        return escape(printable(name))
    return Markup("<wbr>").join(escape(part) for part in re.split(r"(?<=[._/])(?=.)", printable(name)))


def _printable(value: Any) -> Any:
    """What the template does with every value before it is escaped."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _removed(run: Run) -> str:
    """How many channels were removed, in words; empty where that is not known."""
    if run.plan is None or run.topology is None:
        return ""
    removed = len(run.plan.removed(run.topology))
    removable = sum(group.size for group in run.topology.removable_groups)
    if not removable:
        return "No channel can be removed"
    return f"{removed:,} of {removable:,} removable channels are removed"


def _repeat_command(run: Run) -> str:
    """The command that repeats the run from its recipe."""
    if run.result is not None and run.cost is not None and run.result.method == POSTTRAINING:
        budget = f"{run.cost.relative_bops * 1.001:.4g}"  # rounded, but not below the cost of the point
        return f"bayesbits posttrain {RECIPE} --output again --budget {budget}"
    return f"bayesbits search {RECIPE} --output again"
