"""The figure of the course: how cost and loss went over the epochs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bayesbits.report.axes import Axis, linear_axis, log_axis
from bayesbits.report.course import Point, Stage
from bayesbits.report.markup import Markup, tag
from bayesbits.report.svg import WIDTH, label, svg

_HEIGHT, _TOP, _BOTTOM, _LEFT = 270, 48, 222, 56
_MOST_MARKS = 12  # points that are marked one by one


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
    stages: Sequence[Stage], title: str, value: Callable[[Point], float | None], across: tuple[float, float], *,
    logarithmic: bool,
) -> Markup | None:  # fmt: skip
    """One curve for each stage that has the value, in panels that share the axis of epochs."""
    shown = [stage for stage in stages if any(_is_drawn(value(point), logarithmic) for point in stage.points)]
    values = [found for stage in shown for point in stage.points if (found := value(point)) is not None]
    values = [found for found in values if _is_drawn(found, logarithmic)]
    if not values:
        return None
    epochs = Axis(0.0, float(sum(stage.epochs for stage in shown)), *across)
    axis = log_axis(min(values), max(values), _BOTTOM, _TOP) if logarithmic else linear_axis(max(values), _BOTTOM, _TOP)
    parts = [label(across[0] - 48, 14, title, "head"), *_grid(axis, epochs)]
    begun = 0
    for stage in shown:
        parts += _curve(stage, value, begun, epochs, axis, named=len(stages) > 1)
        begun += stage.epochs
    return tag("g", *parts)


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


def _curve(
    stage: Stage, value: Callable[[Point], float | None], begun: int, epochs: Axis, axis: Axis, *, named: bool
) -> list[Markup]:
    places = [
        (epochs.place(begun + point.epoch), axis.place(found))
        for point in stage.points
        if (found := value(point)) is not None and _is_drawn(found, axis.logarithmic)
    ]
    parts = []
    if begun:
        x = epochs.place(begun)
        parts.append(tag("line", class_="border", x1=x, x2=x, y1=_TOP - 12, y2=_BOTTOM))
    if named:
        parts.append(label(epochs.place(begun) + 4, _TOP - 4, stage.name, "note"))
    if len(places) > 1:
        parts.append(tag("polyline", class_="curve", points=" ".join(f"{x:.2f},{y:.2f}" for x, y in places)))
    if len(places) <= _MOST_MARKS:
        parts += [tag("circle", class_="point", cx=x, cy=y, r=2.5) for x, y in places]
    return parts


def _task_loss(point: Point) -> float | None:
    return point.task_loss


def _relative_bops(point: Point) -> float | None:
    return point.relative_bops


def _is_drawn(value: float | None, logarithmic: bool) -> bool:
    return value is not None and (value > 0 or not logarithmic)


def _ends(stage: Stage, value: Callable[[Point], float | None]) -> str:
    values = [found for point in stage.points if (found := value(point)) is not None]
    return f"from {values[0]:.3g} to {values[-1]:.3g}" if values else "not recorded"
