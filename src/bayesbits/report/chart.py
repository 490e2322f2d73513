"""A chart: lines and points over an axis, as an SVG image that the page's script can zoom and read values from.

The image is complete without the script. The legend is text beside it, so that no label lies on a line. Lines differ in
color and in their dashes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, floor, inf, log10
from typing import Any

from markupsafe import Markup

from bayesbits.report.svg import Axis, element, horizontal_line, label, linear_axis, printable

WIDTH, WIDE, HEIGHT = 380, 760, 214
_LEFT, _TOP, _BOTTOM, _MARGIN = 46.0, 22.0, 180.0, 6.0
_TICK_LENGTH = 6  # of a label beside the vertical axis, in characters; longer ones would be cut
STYLES = 6
"""The number of styles of series in the style sheet."""


@dataclass(frozen=True)
class Series:
    """A line, or points, with a name for the legend."""

    name: str
    points: Sequence[tuple[float, float]]
    style: int = 1
    """The number of the style, from 1 to `STYLES`."""
    line: bool = True
    """Whether the points are joined."""
    dots: bool = False
    """Whether the points are marked; points that are not joined always are."""
    notes: Sequence[str] = ()
    """What is said about each point when it is pointed at, where that is more than its name and its values."""
    band: Sequence[tuple[float, float, float]] = ()
    """x, lower and upper end of a band behind the line."""


@dataclass(frozen=True)
class Chart:
    """A chart and its legend."""

    title: str
    x_label: str
    series: Sequence[Series]
    unit: str = ""
    """Behind the values, such as "%"."""
    x_unit: str = ""
    logarithmic: bool = False
    x_logarithmic: bool = False
    from_zero: bool = True
    """Whether a linear axis begins at zero."""
    limit: tuple[str, float] | None = None
    """A horizontal line with its name, such as the budget."""
    reference: tuple[str, float] | None = None
    """Another one, for what is compared with and is no limit, such as the float network."""
    parts: Sequence[tuple[str, float]] = ()
    """Names of parts of the horizontal axis, and where each begins."""
    note: str = ""
    """What else has to be said below the chart."""
    whole: bool = field(default=False)
    """Whether the ticks of the horizontal axis are whole numbers."""

    @property
    def shown(self) -> list[Series]:
        """The series with something to draw."""
        found = []
        for one in self.series:
            kept = [
                index
                for index, (x, y) in enumerate(one.points)
                if (x > 0 or not self.x_logarithmic) and (y > 0 or not self.logarithmic)
            ]
            notes = [one.notes[index] for index in kept] if one.notes else ()
            points = [one.points[index] for index in kept]
            if points:
                found.append(Series(one.name, points, one.style, one.line, one.dots, notes, one.band))
        return found

    def legend(self) -> list[tuple[str, str, str]]:
        """Style, name, and the last value of every line."""
        rows = [
            (f"s{one.style}{' dots' if not one.line else ''}", one.name,
             f"{one.points[-1][1]:.3g}{self.unit}" if one.line and not one.notes else "")
            for one in self.shown
        ]  # fmt: skip
        return rows + [(style, name, f"{value:.4g}{self.unit}") for style, name, value in self._lines]

    @property
    def _lines(self) -> list[tuple[str, str, float]]:
        """Style, name and value of the horizontal lines."""
        lines = (("limit", self.limit), ("reference", self.reference))
        return [(style, *line) for style, line in lines if line is not None]

    def svg(self, name: str, width: int = WIDTH) -> Markup:
        """The image; `name` makes its ids unique in the page."""
        shown, right = self.shown, width - 8.0
        horizontal, vertical = self._axes(shown, right)
        data = {
            "x": self.x_label, "u": self.unit, "xu": self.x_unit, "whole": self.whole,
            "h": [horizontal.low, horizontal.high, horizontal.start, horizontal.end, self.x_logarithmic],
            "v": [vertical.low, vertical.high, vertical.start, vertical.end, self.logarithmic],
            "s": [self._data(one) for one in shown],
        }  # fmt: skip
        description = "; ".join(
            f"{one.name}: from {one.points[0][1]:.3g}{self.unit} to {one.points[-1][1]:.3g}{self.unit}" for one in shown
        )
        return element(
            "svg",
            element("title", self.title, id=f"{name}-title"),
            element("desc", description, id=f"{name}-desc"),
            *self._grid(horizontal, vertical),
            element(
                "svg", *self._curves(shown, horizontal, vertical), class_="plot", x=_LEFT - _MARGIN, y=_TOP - _MARGIN,
                width=right - _LEFT + 2 * _MARGIN, height=_BOTTOM - _TOP + 2 * _MARGIN,
                viewBox=f"{_LEFT - _MARGIN:g} {_TOP - _MARGIN:g} {right - _LEFT + 2 * _MARGIN:g} "
                f"{_BOTTOM - _TOP + 2 * _MARGIN:g}",
            ),
            viewBox=f"0 0 {width} {HEIGHT}", class_="chart", role="img", tabindex="0",
            aria_labelledby=f"{name}-title {name}-desc", data_chart=json.dumps(data, separators=(",", ":")),
        )  # fmt: skip

    def _data(self, one: Series) -> list[Any]:
        points = [[float(f"{x:.6g}"), float(f"{y:.5g}")] for x, y in one.points]
        return [printable(one.name), points, [printable(note) for note in one.notes], one.style]

    def _axes(self, shown: Sequence[Series], right: float) -> tuple[Axis, Axis]:
        xs = [x for one in shown for x, _ in one.points]
        ys = [y for one in shown for _, y in one.points] + [y for one in shown for _, *ends in one.band for y in ends]
        ys += [value for *_, value in self._lines]
        if self.logarithmic:
            ys = [y for y in ys if y > 0]
            low, high = enclosing(min(ys), max(ys))
            vertical = Axis(low, high, _BOTTOM, _TOP, logarithmic=True)
        elif self.from_zero and min(ys) >= 0:
            vertical = linear_axis(max(ys), _BOTTOM, _TOP)
        else:
            vertical = _fitted(min(ys), max(ys), 100.0 if self.unit == "%" else inf)
        if self.x_logarithmic:
            return Axis(*enclosing(min(xs), max(xs)), _LEFT, right, logarithmic=True), vertical
        start = min([*xs, *(begin for _, begin in self.parts)]) if not self.parts else 0.0
        high = max(xs)
        return Axis(start, high if high > start else start + 1, _LEFT, right), vertical

    def _grid(self, horizontal: Axis, vertical: Axis) -> list[Markup]:
        parts, right = [], horizontal.end
        values = ticks(vertical)
        unit = self.unit if all(len(f"{tick:g}{self.unit}") <= _TICK_LENGTH for tick in values) else ""
        for tick in values:
            y = vertical.position(tick)
            parts += [
                horizontal_line("grid", _LEFT, right, y),
                label(_LEFT - 6, y + 4, f"{tick:g}{unit}", "tick", "end"),
            ]
        marks = []
        for tick in ticks(horizontal):
            if tick == int(tick) or not self.whole:
                x = horizontal.position(tick)
                anchor = "end" if x > right - 12 else "middle"
                marks.append(label(min(x, right), _BOTTOM + 16, f"{tick:g}", "tick", anchor))
        parts.append(element("g", *marks, class_="marks"))
        parts.append(horizontal_line("axis", _LEFT, right, _BOTTOM))
        parts.append(label((_LEFT + right) / 2, _BOTTOM + 31, self.x_label, "tick", "middle"))
        return parts + self._parts(horizontal)

    def _parts(self, horizontal: Axis) -> list[Markup]:
        """The names of the parts, where they fit, and lines between them."""
        marks = []
        ends = [*(begin for _, begin in self.parts[1:]), horizontal.high][: len(self.parts)]
        for (name, begin), end in zip(self.parts, ends, strict=True):
            x, width = horizontal.position(begin), horizontal.position(end) - horizontal.position(begin)
            if begin > horizontal.low:
                marks.append(element("line", class_="border", x1=x, x2=x, y1=_TOP - 8, y2=_BOTTOM))
            if width > 6.4 * len(name):
                marks.append(label(x + 4, _TOP - 9, name, "part"))
        return [element("g", *marks, class_="parts")] if marks else []

    def _curves(self, shown: Sequence[Series], horizontal: Axis, vertical: Axis) -> list[Markup]:
        found = []
        for style, _, value in self._lines:
            y = vertical.position(value)
            found.append(element("line", class_=style, x1=_LEFT, x2=horizontal.end, y1=y, y2=y))
        for one in shown:
            places = [(horizontal.position(x), vertical.position(y)) for x, y in one.points]
            group = []
            if one.band:
                upper = [(horizontal.position(x), vertical.position(high)) for x, _, high in one.band]
                lower = [(horizontal.position(x), vertical.position(low)) for x, low, _ in reversed(one.band)]
                group.append(element("polygon", class_="band", points=_written([*upper, *lower])))
            if one.line:
                group.append(element("polyline", points=_written(places)))
            if one.dots or not one.line or len(places) == 1:
                group += [_dot(one.style, x, y) for x, y in places]
            found.append(element("g", *group, class_=f"series s{one.style}"))
        return found


def _dot(style: int, x: float, y: float) -> Markup:
    """A mark whose shape, too, says which series it belongs to."""
    if style % 3 == 1:
        return element("circle", cx=x, cy=y, r=4)
    if style % 3 == 2:
        return element("rect", x=x - 3.6, y=y - 3.6, width=7.2, height=7.2)
    return element("path", d=f"M{x:.1f} {y - 5:.1f}L{x + 5:.1f} {y + 3.5:.1f}L{x - 5:.1f} {y + 3.5:.1f}Z")


def _written(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _fitted(low: float, high: float, most: float = inf) -> Axis:
    """An axis from the last round number below `low` to the first above `high`; not above `most` if no value is."""
    span = (high - low) or abs(high) * 0.1 or 1.0
    probe = Axis(low - 0.05 * span, high + 0.05 * span, _BOTTOM, _TOP)
    step = probe.ticks()
    size = step[1] - step[0] if len(step) > 1 else span
    top = ceil(probe.high / size) * size
    return Axis(floor(probe.low / size) * size, most if high <= most < top else top, _BOTTOM, _TOP)


def enclosing(low: float, high: float) -> tuple[float, float]:
    """1, 2 or 5 times powers of ten that enclose two positive numbers."""
    if high <= low:
        low, high = low / 1.5, high * 1.5
    below = [
        one * 10.0 ** floor(log10(low)) for one in (1, 2, 5) if one * 10.0 ** floor(log10(low)) <= low * (1 + 1e-9)
    ]
    above = [one * 10.0 ** floor(log10(high)) for one in (1, 2, 5, 10)]
    return below[-1], next(one for one in above if one >= high * (1 - 1e-9))


def ticks(axis: Axis) -> list[float]:
    """The ticks of an axis; on a logarithmic one of less than three decades also 2 and 5 times the powers of ten."""
    if not axis.logarithmic or log10(axis.high / axis.low) > 3:
        return axis.ticks()
    decades = range(floor(log10(axis.low)), ceil(log10(axis.high)) + 1)
    found = [one * 10.0**decade for decade in decades for one in (1, 2, 5)]
    return [tick for tick in found if axis.low * (1 - 1e-9) <= tick <= axis.high * (1 + 1e-9)]
