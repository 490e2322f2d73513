"""The figure of the training curves: expected cost and task loss over the epochs of all stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from bayesbits.report.run_data import Point, Stage
from bayesbits.report.svg import WIDTH, Axis, element, figure, horizontal_line, label, linear_axis, log_axis

_HEIGHT, _TOP, _BOTTOM, _LEFT = 282, 60, 234, 56
_MOST_MARKERS = 12  # a curve with more points is drawn without markers

Value = Callable[[Point], float | None]


def training_figure(stages: Sequence[Stage]) -> Markup | None:
    """Two panels: expected relative bit operations (logarithmic) and task loss. None if there is nothing to draw."""
    middle = WIDTH / 2
    panels = [
        _panel(stages, "expected relative BOPs, %", _relative_bops, (_LEFT, middle - 24), logarithmic=True),
        _panel(stages, "task loss", _task_loss, (middle + _LEFT, WIDTH - 8.0), logarithmic=False),
    ]
    if not any(panels):
        return None
    description = "; ".join(
        f"{stage.name}, {stage.epochs} epochs: task loss {_first_and_last(stage, _task_loss)}, "
        f"expected relative BOPs {_first_and_last(stage, _relative_bops)}"
        for stage in stages
    )
    return figure("training", _HEIGHT, "Training curves", description, *(panel for panel in panels if panel))


def _panel(
    stages: Sequence[Stage], title: str, value: Value, horizontal: tuple[float, float], *, logarithmic: bool
) -> Markup | None:
    """A curve for each stage that has the value, the stages side by side."""
    shown = [(stage, points) for stage in stages if (points := _drawn(stage, value, logarithmic))]
    values = [height for _, points in shown for _, height in points]
    if not values:
        return None
    epochs = Axis(0.0, float(sum(stage.epochs for stage, _ in shown)), *horizontal)
    axis = log_axis(min(values), max(values), _BOTTOM, _TOP) if logarithmic else linear_axis(max(values), _BOTTOM, _TOP)
    parts = [label(horizontal[0] - 48, 14, title, "head"), *_grid(axis, epochs)]
    start = 0
    for stage, points in shown:
        if len(stages) > 1:
            parts += _stage_name(stage.name, start, start + stage.epochs, epochs)
        curve = [(epochs.position(start + epoch), axis.position(height)) for epoch, height in points]
        parts += _curve(curve)
        start += stage.epochs
    x, y = curve[-1]
    return element("g", *parts, label(x, y - 7, f"{values[-1]:.3g}", "value last", "end"))


def _drawn(stage: Stage, value: Value, logarithmic: bool) -> list[tuple[float, float]]:
    """Epochs and values of a stage; zero has no position on a logarithmic axis."""
    found = [(point.epoch, value(point)) for point in stage.points]
    return [(epoch, height) for epoch, height in found if height is not None and (height > 0 or not logarithmic)]


def _grid(axis: Axis, epochs: Axis) -> list[Markup]:
    """The ticks of both axes with their lines and labels."""
    left, right = epochs.start, epochs.end
    parts = []
    for tick in axis.ticks():
        y = axis.position(tick)
        parts.append(horizontal_line("grid", left, right, y))
        parts.append(label(left - 6, y + 4, f"{tick:g}", "value", "end"))
    for tick in epochs.ticks():
        if tick == int(tick):
            parts.append(label(epochs.position(tick), _BOTTOM + 17, f"{tick:g}", "value", "middle"))
    parts.append(horizontal_line("axis", left, right, _BOTTOM))
    parts.append(label((left + right) / 2, _BOTTOM + 36, "epochs", "note", "middle"))
    return parts


def _stage_name(name: str, start: int, end: int, epochs: Axis) -> list[Markup]:
    """The name of a stage, and a line where it begins unless it is the first; the last name is aligned right."""
    x = epochs.position(start)
    if end == epochs.high and start:
        parts = [label(epochs.end, _TOP - 16, name, "note", "end")]
    else:
        parts = [label(x + 4 * bool(start), _TOP - 16, name, "note")]
    if start:
        parts.append(element("line", class_="border", x1=x, x2=x, y1=_TOP - 24, y2=_BOTTOM))
    return parts


def _curve(positions: Sequence[tuple[float, float]]) -> list[Markup]:
    parts = []
    if len(positions) > 1:
        parts.append(element("polyline", class_="curve", points=" ".join(f"{x:.2f},{y:.2f}" for x, y in positions)))
    if len(positions) <= _MOST_MARKERS:
        parts += [element("circle", class_="point", cx=x, cy=y, r=2.5) for x, y in positions]
    return parts


def _task_loss(point: Point) -> float | None:
    return point.task_loss


def _relative_bops(point: Point) -> float | None:
    return point.relative_bops


def _first_and_last(stage: Stage, value: Value) -> str:
    values = [found for point in stage.points if (found := value(point)) is not None]
    return f"from {values[0]:.3g} to {values[-1]:.3g}" if values else "not recorded"
