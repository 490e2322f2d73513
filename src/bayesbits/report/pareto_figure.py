"""The figure of a sweep: the main metric over the bit operations, with mean and standard error of each setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, floor, log10

from markupsafe import Markup

from bayesbits.report.svg import WIDTH, Axis, element, figure, horizontal_line, label
from bayesbits.sweeps.estimate import Estimate
from bayesbits.sweeps.summary import SummaryRow

_TOP, _PLOT, _LEFT, _RIGHT = 36.0, 300.0, 64.0, WIDTH - 12.0
_BELOW, _LEGEND_LINE = 48.0, 20.0
SERIES = 8
"""How many colors the style sheet has for series."""
_CHARACTER = 6.2  # the mean width of a character in a label
_LEAST_COST = 1e-6  # zero has no position on a logarithmic axis


@dataclass(frozen=True)
class _Place:
    """A row of the summary with its position."""

    row: SummaryRow
    x: float
    y: float


def series_of(rows: Sequence[SummaryRow]) -> list[str]:
    """The series of every row: its method, and its recipe where there are several."""
    several = len({row.recipe for row in rows}) > 1
    return [f"{row.recipe}, {row.method}" if several else row.method for row in rows]


def pareto_figure(rows: Sequence[SummaryRow], name: str) -> Markup:
    """Rows with the same metric, a color for each method; a line joins those of a method that no other one beats."""
    bottom = _TOP + _PLOT
    horizontal = _cost_axis([row.relative_bops for row in rows])
    vertical = _score_axis([row.score for row in rows])
    places = [
        _Place(row, _cost_position(horizontal, row.relative_bops.mean), vertical.position(row.score.mean))
        for row in rows
    ]
    series = series_of(rows)
    kinds = list(dict.fromkeys(series))
    parts = [*_grid(horizontal, vertical, bottom), label(8, 16, _score_name(rows[0]), "head")]
    for number, kind in enumerate(kinds):
        own = [place for place, found in zip(places, series, strict=True) if found == kind]
        style = f"series-{number % SERIES}"
        parts.append(element("g", *_series(own, horizontal, vertical), class_=style))
        y = bottom + _BELOW + _LEGEND_LINE * number
        parts.append(element("g", element("circle", class_="mean", cx=_LEFT + 4, cy=y - 4, r=5), class_=style))
        parts.append(label(_LEFT + 16, y, kind, "note"))
    height = bottom + _BELOW + _LEGEND_LINE * len(kinds)
    parts += _labels(places)
    return figure(name, height, f"{rows[0].metric} and bit operations", _description(rows, series), *parts)


def _score_name(row: SummaryRow) -> str:
    unit = f", {row.unit}" if row.unit else ""
    return f"{row.metric}{unit} ({'higher' if row.higher_is_better else 'lower'} is better)"


def _description(rows: Sequence[SummaryRow], series: Sequence[str]) -> str:
    return "; ".join(
        ", ".join(part for part in (kind, _sentence(row)) if part) for row, kind in zip(rows, series, strict=True)
    )


def _sentence(row: SummaryRow) -> str:
    """A setting with its numbers."""
    numbers = f"{row.metric} {row.score_text} at {row.relative_bops.mean:.3g}% of the bit operations"
    return f"{row.own_label}: {numbers}" if row.own_label else numbers


def _cost_axis(costs: Sequence[Estimate]) -> Axis:
    """A logarithmic axis around all values, with room at both ends."""
    values = [max(value, _LEAST_COST) for cost in costs for value in cost.values]
    return Axis(min(values) / 1.25, max(values) * 1.25, _LEFT, _RIGHT, logarithmic=True)


def _cost_position(axis: Axis, cost: float) -> float:
    return axis.position(max(cost, _LEAST_COST))


def _score_axis(scores: Sequence[Estimate]) -> Axis:
    values = [value for score in scores for value in (*score.values, *score.ends)]
    low, high = min(values), max(values)
    room = 0.12 * (high - low) or 0.01 * abs(high) or 1.0
    return Axis(low - room, high + room, _TOP + _PLOT, _TOP)


def _grid(horizontal: Axis, vertical: Axis, bottom: float) -> list[Markup]:
    parts = []
    for tick in vertical.ticks():
        y = vertical.position(tick)
        parts.append(horizontal_line("grid", _LEFT, _RIGHT, y))
        parts.append(label(_LEFT - 6, y + 4, f"{tick:.6g}", "value", "end"))
    for tick in _cost_ticks(horizontal.low, horizontal.high):
        x = horizontal.position(tick)
        parts.append(element("line", class_="grid", x1=x, x2=x, y1=_TOP, y2=bottom))
        parts.append(label(x, bottom + 17, f"{tick:g}%", "value", "middle"))
    parts.append(horizontal_line("axis", _LEFT, _RIGHT, bottom))
    parts.append(label(_RIGHT, bottom + 34, "bit operations, relative to 32 x 32 bits", "note", "end"))
    return parts


def _cost_ticks(low: float, high: float) -> list[float]:
    """Round values on a logarithmic axis: 1, 2 and 5 times powers of ten; finer ones where these are fewer than two."""
    for factors in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), tuple(number / 20 for number in range(20, 200))):
        powers = range(floor(log10(low)), ceil(log10(high)) + 1)
        ticks = [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]
        if len(ticks) >= 2:
            return ticks[:: max(1, len(ticks) // 10)]
    return [low, high]


def _series(places: Sequence[_Place], horizontal: Axis, vertical: Axis) -> list[Markup]:
    """The points of a method, and the line along its front."""
    parts = []
    front = _front(places)
    if len(front) > 1:
        points = " ".join(f"{place.x:.2f},{place.y:.2f}" for place in front)
        parts.append(element("polyline", class_="front", points=points))
    return parts + [part for place in places for part in _point(place, horizontal, vertical)]


def _labels(places: Sequence[_Place]) -> list[Markup]:
    """The settings beside their points, above or below, left or right; one that would cover something is left out."""
    taken = [(place.x - 6, place.y - 6, place.x + 6, place.y + 6) for place in places]
    parts = []
    for place in places:
        text = place.row.own_label
        width = _CHARACTER * len(text)
        for down, left in product((False, True), (False, True)):
            start = place.x - 9 - width if left else place.x + 9
            y = place.y + (16 if down else -8)
            box = (start, y - 10, start + width, y + 2)
            inside = box[0] >= _LEFT and box[2] <= _RIGHT and box[1] >= _TOP
            if text and inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                anchor = "end" if left else "start"
                parts.append(label(place.x + (-9 if left else 9), y, text, "value last", anchor))
                break
    return parts


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two boxes (left, top, right, bottom) have something in common."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _point(place: _Place, horizontal: Axis, vertical: Axis) -> list[Markup]:
    """The mean of a setting; with several seeds also these, and one standard error in both directions."""
    cost, score = place.row.relative_bops, place.row.score
    parts = []
    if len(score.values) > 1:
        for one, other in zip(cost.values, score.values, strict=True):
            x, y = _cost_position(horizontal, one), vertical.position(other)
            parts.append(element("circle", class_="seed", cx=x, cy=y, r=2.5))
        low, high = (vertical.position(end) for end in score.ends)
        left, right = (max(_LEFT, _cost_position(horizontal, end)) for end in cost.ends)
        parts.append(element("line", class_="error", x1=place.x, x2=place.x, y1=low, y2=high))
        parts.append(element("line", class_="error", x1=left, x2=right, y1=place.y, y2=place.y))
    shown_beside_the_pointer = element("title", _sentence(place.row))
    parts.append(element("circle", shown_beside_the_pointer, class_="mean", cx=place.x, cy=place.y, r=5))
    return parts


def _front(places: Sequence[_Place]) -> list[_Place]:
    """The places, from the smallest cost, that are better than all with a smaller cost; y grows downwards."""
    front: list[_Place] = []
    sign = 1 if places[0].row.higher_is_better else -1
    for place in sorted(places, key=lambda place: (place.x, sign * place.y)):
        if not front or sign * place.y < sign * front[-1].y:
            front.append(place)
    return front
