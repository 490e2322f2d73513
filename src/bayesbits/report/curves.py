"""The figure of the course: how cost and loss went over the epochs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bayesbits.report.axes import Axis, linear_axis, log_axis
from bayesbits.report.course import Point, Stage
from bayesbits.report.markup import Markup, tag
from bayesbits.report.svg import WIDTH, label, svg

_HEIGHT, _TOP, _BOTTOM, _LEFT = 282, 60, 234, 56
_MOST_MARKS = 12  # points that are marked one by one

Value = Callable[[Point], float | None]


def course_figure(stages: Sequence[Stage]) -> Markup | None:
    """Expected relative bit operations, on a logarithmic axis, and loss of the task over the epochs; None: no data."""
    middle = WIDTH / 2
    panels = [
        _panel(stages, "expected relative BOPs, %", _relative_bops, (_LEFT, middle - 24), logarithmic=True),
        _panel(stages, "task loss", _task_loss, (middle + _LEFT, WIDTH - 8.0), logarithmic=False),
    ]
    if not any(panels):
        return None
    said = "; ".join(
        f"{stage.name}, {stage.epochs} epochs: task loss {_ends(stage, _task_loss)}, "
        f"expected relative BOPs {_ends(stage, _relative_bops)}"
        for stage in stages
    )
    return svg("course", _HEIGHT, "The course of the training", said, *(panel for panel in panels if panel))


def _panel(
    stages: Sequence[Stage], title: str, value: Value, across: tuple[float, float], *, logarithmic: bool
) -> Markup | None:
    """One curve for each stage that has the value, one stage behind the other."""
    shown = [(stage, points) for stage in stages if (points := _drawn(stage, value, logarithmic))]
    values = [height for _, points in shown for _, height in points]
    if not values:
        return None
    epochs = Axis(0.0, float(sum(stage.epochs for stage, _ in shown)), *across)
    axis = log_axis(min(values), max(values), _BOTTOM, _TOP) if logarithmic else linear_axis(max(values), _BOTTOM, _TOP)
    parts = [label(across[0] - 48, 14, title, "head"), *_grid(axis, epochs)]
    begun = 0
    for stage, points in shown:
        if len(stages) > 1:
            parts += _border(stage.name, begun, begun + stage.epochs, epochs)
        parts += _curve([(epochs.place(begun + epoch), axis.place(height)) for epoch, height in points])
        begun += stage.epochs
    x, y = epochs.place(begun - stage.epochs + points[-1][0]), axis.place(values[-1])
    return tag("g", *parts, label(x, y - 7, f"{values[-1]:.3g}", "value last", "end"))


def _drawn(stage: Stage, value: Value, logarithmic: bool) -> list[tuple[float, float]]:
    """Epochs and values; a logarithmic axis has no place for zero."""
    found = [(point.epoch, value(point)) for point in stage.points]
    return [(epoch, height) for epoch, height in found if height is not None and (height > 0 or not logarithmic)]


def _grid(axis: Axis, epochs: Axis) -> list[Markup]:
    left, right = epochs.start, epochs.end
    parts = []
    for tick in axis.ticks():
        y = axis.place(tick)
        parts.append(tag("line", class_="grid", x1=left, x2=right, y1=y, y2=y))
        parts.append(label(left - 6, y + 4, f"{tick:g}", "value", "end"))
    for tick in epochs.ticks():
        if tick == int(tick):
            parts.append(label(epochs.place(tick), _BOTTOM + 17, f"{tick:g}", "value", "middle"))
    parts.append(tag("line", class_="axis", x1=left, x2=right, y1=_BOTTOM, y2=_BOTTOM))
    parts.append(label((left + right) / 2, _BOTTOM + 36, "epochs", "note", "middle"))
    return parts


def _border(name: str, begun: int, ended: int, epochs: Axis) -> list[Markup]:
    """A stage's name, and a line in front of it if it is not the first; the last one's name ends where it does."""
    x = epochs.place(begun)
    if ended == epochs.high and begun:
        parts = [label(epochs.end, _TOP - 16, name, "note", "end")]
    else:
        parts = [label(x + 4 * bool(begun), _TOP - 16, name, "note")]
    if begun:
        parts.append(tag("line", class_="border", x1=x, x2=x, y1=_TOP - 24, y2=_BOTTOM))
    return parts


def _curve(places: Sequence[tuple[float, float]]) -> list[Markup]:
    parts = []
    if len(places) > 1:
        parts.append(tag("polyline", class_="curve", points=" ".join(f"{x:.2f},{y:.2f}" for x, y in places)))
    if len(places) <= _MOST_MARKS:
        parts += [tag("circle", class_="point", cx=x, cy=y, r=2.5) for x, y in places]
    return parts


def _task_loss(point: Point) -> float | None:
    return point.task_loss


def _relative_bops(point: Point) -> float | None:
    return point.relative_bops


def _ends(stage: Stage, value: Value) -> str:
    values = [found for point in stage.points if (found := value(point)) is not None]
    return f"from {values[0]:.3g} to {values[-1]:.3g}" if values else "not recorded"
