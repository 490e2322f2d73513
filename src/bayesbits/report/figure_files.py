"""The figures of a page as files of their own: SVG images, and PNG images where the extra `figures` is installed.

They are for papers and slides: light, with their title and legend in the image, and without a script.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from markupsafe import Markup

from bayesbits.recipes.run_folder import write
from bayesbits.report.chart import HEIGHT, WIDTH, Chart
from bayesbits.report.comparison import comparison_chart
from bayesbits.report.front_chart import front_chart
from bayesbits.report.gate_figures import Strip, gate_chart, gate_strips
from bayesbits.report.histogram_figure import HEIGHT as HISTOGRAM_HEIGHT
from bayesbits.report.histogram_figure import WIDTH as HISTOGRAM_WIDTH
from bayesbits.report.histogram_figure import histogram
from bayesbits.report.layer_errors import error_charts, layer_numbers
from bayesbits.report.network_figure import picture, skyline, widest_bits
from bayesbits.report.run_data import Run
from bayesbits.report.svg import element, label
from bayesbits.report.training_charts import training_charts

EXTRA_PACKAGE = "resvg_py"
"""What draws an SVG image as PNG."""

_ZOOM = 3  # pixels of a PNG image for each of the SVG
_HEAD, _ROW, _FOOT, _CHARACTER = 24, 16, 6, 6.6
_STRIP = 480
_SKYLINE = (760, 200)
_COLORS = ("#2563b8", "#c9690c", "#0e7f76", "#9b4f96", "#6b7785", "#7d6608")
_LINES = ("limit", "reference")
_DASHES = ("none", "7 4", "2 3.5")
# What draws PNG images takes Arial for "sans-serif", and leaves text out where that is not installed.
_STYLE = """
text { font-family: Arial, Helvetica, 'Liberation Sans', 'DejaVu Sans', 'Noto Sans', Roboto, Verdana, sans-serif; }
text { font-size: 11.5px; fill: #17202a; } .head { font-weight: 600; font-size: 12.5px; }
.tick, .part, .note { fill: #5a6775; font-size: 11px; } .grid { stroke: #dfe4ea; } .axis { stroke: #5a6775; }
.border { stroke: #5a6775; stroke-dasharray: 2 3; }
.limit { stroke: #b3261e; stroke-width: 1.6; stroke-dasharray: 6 4; }
.reference { stroke: #5a6775; stroke-width: 1.4; stroke-dasharray: 1 3; }
polyline { fill: none; stroke-width: 2; } .bars { fill: #2563b8; fill-opacity: 0.75; } .codes { stroke: #c9690c; }
.ends { stroke: #b3261e; stroke-width: 1.6; stroke-dasharray: 4 3; } .slot { fill: none; }
.weight { fill: #2563b8; } .input { fill: #c9690c; } .middle { stroke: #ffffff; stroke-width: 2; }
.b0 { fill: #c4ccd4; } .b2 { fill: #bfe3e0; } .b4 { fill: #6fbccb; } .b8 { fill: #2f7fb5; } .b16 { fill: #254f94; }
.b32 { fill: #1d2f5c; }
""" + "".join(
    f".s{number} polyline, .s{number} .key {{ stroke: {color}; stroke-dasharray: {_DASHES[number % 3 - 1]}; }} "
    f".s{number} circle, .s{number} rect, .s{number} path {{ fill: {color}; }} "
    f".s{number} .band {{ fill: {color}; fill-opacity: 0.16; }}\n"
    for number, color in enumerate(_COLORS, start=1)
)


def write_figures(run: Run, folder: str | Path) -> list[Path]:
    """Write every figure of a run into a folder; returns the paths."""
    return _write(_figures(run), Path(folder))


def write_comparison_figures(runs: Sequence[Run], folder: str | Path) -> list[Path]:
    """Write the chart that compares runs into a folder; returns the paths, none where no run is finished."""
    chart = comparison_chart(runs)
    return [] if chart is None else _write([(chart.title, chart_image(chart))], Path(folder))


def _write(figures: Iterable[tuple[str, str]], folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, image in figures:
        path = folder / f"{_file_name(name)}.svg"
        write(path, image)
        paths.append(path)
        if find_spec(EXTRA_PACKAGE) is not None:
            write(path.with_suffix(".png"), _png(image))
            paths.append(path.with_suffix(".png"))
    return paths


def _figures(run: Run) -> Iterator[tuple[str, str]]:
    """Names and images: charts, the bits along the network, gates over the run, and histograms of the tensors."""
    front = None if run.front is None else front_chart(run.front, run.recipe, run.result)
    for chart in (*training_charts(run), *error_charts(run.statistics, layer_numbers(run)), front):
        if chart is not None:
            yield chart.title, chart_image(chart)
    if run.topology is not None and run.plan is not None:
        bars = skyline(picture(run, run.topology), least=1)
        assert bars is not None
        title = f"Bits along the network: weights upward, inputs downward; full height: {widest_bits(run)} bits"
        yield "network", _image(title, bars, *_SKYLINE)
    points = next((stage.gates for stage in run.curves.stages if stage.gates), ())
    if points:
        yield "bits-over-the-search", strips_image(gate_strips(points))
    for tensor in points[-1].probabilities if points else ():
        chart = gate_chart(points, tensor)
        if chart is not None:
            yield f"gates-{tensor}", chart_image(replace(chart, title=f"{tensor}: probability that a gate is open"))
    for one in () if run.statistics is None else run.statistics.tensors:
        title = f"{one.name}, {one.bits} bits"
        yield f"histogram-{one.name}", _image(title, histogram(one), HISTOGRAM_WIDTH, HISTOGRAM_HEIGHT)


def strips_image(strips: Sequence[Strip]) -> str:
    """The bits of every tensor over the search as one image: a name, a strip, and the bits at the end in each row."""
    left = 20 + _CHARACTER * max(len(strip.name) for strip in strips)
    rows = []
    for place, strip in enumerate(strips):
        y = _ROW * place
        name = label(8, y + 11, strip.name, "note")
        bits = label(left + _STRIP + 8, y + 11, f"{strip.bits} bits", "note")
        rows.append(Markup("").join((name, _placed(strip.svg, left, y + 2, _STRIP, _ROW - 4), bits)))
    width, height = round(left + _STRIP + 60), _ROW * len(strips)
    inner = element("svg", *rows, viewBox=f"0 0 {width} {height}")
    return _image("Bits of every tensor over the search", inner, width, height)


def chart_image(chart: Chart) -> str:
    """A chart with its title and its legend, as one SVG image."""
    rows: list[Markup] = []
    for place, (style, name, value) in enumerate(chart.legend()):
        y = _HEAD + _ROW * place + 6
        line = element(
            "line", class_=f"key {style}" if style in _LINES else "key", x1=8, x2=32, y1=y, y2=y, stroke_width=2
        )
        group = "legend" if style in _LINES else style.split()[0]
        rows.append(element("g", line, label(38, y + 4, f"{name} {value}".strip(), "note"), class_=group))
    return _image(chart.title, chart.svg("chart"), WIDTH, HEIGHT, *rows)


def _image(title: str, inner: Markup, width: int, height: int, *rows: Markup) -> str:
    """An image with a title, rows of a legend, and another image below them."""
    top = _HEAD + _ROW * len(rows) + 4
    width = max(width, round(_CHARACTER * 1.1 * len(title)) + 16)
    return str(
        element(
            "svg",
            element("style", Markup(_STYLE)),
            element("rect", x=0, y=0, width=width, height=top + height + _FOOT, fill="#ffffff"),
            label(8, 16, title, "head"),
            *rows,
            _placed(inner, 0, top, width, height),
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {width} {top + height + _FOOT}",
            width=width,
            height=top + height + _FOOT,
        )
    )


def _placed(inner: Markup, x: float, y: float, width: float, height: float) -> Markup:
    """An image at a place inside of another one."""
    return Markup(str(inner).replace("<svg ", f'<svg x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" ', 1))


def _file_name(name: str) -> str:
    """A name of a file without characters that a file system or a shell could mind."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.").lower()


def _png(image: str) -> bytes:
    import resvg_py

    return bytes(resvg_py.svg_to_bytes(svg_string=image, zoom=_ZOOM))
