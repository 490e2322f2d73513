"""A picture of accuracy over cost as SVG: a line for each front, and a marker for each network beside them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from bayesbits.report.svg import Axis, element

Points = Sequence[tuple[float, float]]
"""Cost and accuracy of each point."""

WIDTH, HEIGHT = 720, 460
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 20, 50
COLORS = (
    "#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#17becf", "#bcbd22",
)  # fmt: skip


def draw_fronts(
    path: Path,
    fronts: Mapping[str, Points],
    *,
    level: tuple[str, float],
    costs: tuple[float, float],
    accuracies: tuple[float, float],
    labels: tuple[str, str],
) -> None:
    """Write the picture. `level` is a name and an accuracy that is drawn as a line from left to right.

    A front of one point is a square, others are lines with circles. Points outside of the axes are left out.
    """
    across = Axis(*costs, LEFT, WIDTH - RIGHT)
    up = Axis(*accuracies, HEIGHT - BOTTOM, TOP)
    parts = [element("rect", width=WIDTH, height=HEIGHT, fill="white"), *_grid(across, up, labels)]
    names = [name for name in fronts if fronts[name]]
    for number, name in enumerate(names):
        inside = [
            (across.position(cost), up.position(accuracy))
            for cost, accuracy in sorted(fronts[name])
            if across.low <= cost <= across.high and up.low <= accuracy <= up.high
        ]
        color = COLORS[number % len(COLORS)]
        parts += [*_front(inside, color), *_key(number, name, color, single=len(fronts[name]) == 1)]
    name, value = level
    y = up.position(value)
    parts.append(_line(LEFT, y, WIDTH - RIGHT, y, stroke="#555", stroke_dasharray="4 3"))
    parts.append(_text(WIDTH - RIGHT - 4, y - 5, f"{name} {value:.1f}", anchor="end"))
    picture = element(
        "svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {HEIGHT}", font_family="sans-serif"
    )
    path.write_text(f"{picture}\n", encoding="utf-8")


def _grid(across: Axis, up: Axis, labels: tuple[str, str]) -> list[Markup]:
    """Both axes with their ticks and labels."""
    parts = []
    for tick in across.ticks():
        x = across.position(tick)
        parts += [_line(x, TOP, x, HEIGHT - BOTTOM, stroke="#e5e5e5")]
        parts += [_text(x, HEIGHT - BOTTOM + 18, f"{tick:g}", anchor="middle")]
    for tick in up.ticks():
        y = up.position(tick)
        parts += [_line(LEFT, y, WIDTH - RIGHT, y, stroke="#e5e5e5"), _text(LEFT - 8, y + 4, f"{tick:g}", anchor="end")]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, labels[0], anchor="middle"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(_text(16, middle, labels[1], anchor="middle", transform=f"rotate(-90 16 {middle:g})"))
    return parts


def _front(points: Points, color: str) -> list[Markup]:
    if len(points) == 1:
        ((x, y),) = points
        return [_square(x, y, color)]
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    line = element("polyline", points=joined, fill="none", stroke=color, stroke_width=2)
    return [line, *(element("circle", cx=x, cy=y, r=4, fill=color) for x, y in points)]


def _key(number: int, name: str, color: str, *, single: bool) -> list[Markup]:
    """A line of the key, in the lower right corner."""
    x, y = WIDTH - RIGHT - 190, HEIGHT - BOTTOM - 14 - 18 * number
    mark = _square(x, y - 4, color) if single else element("circle", cx=x, cy=y - 4, r=4, fill=color)
    return [mark, _text(x + 12, y, name)]


def _square(x: float, y: float, color: str) -> Markup:
    return element("rect", x=x - 4.5, y=y - 4.5, width=9, height=9, fill=color)


def _line(x1: float, y1: float, x2: float, y2: float, **style: str) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **style)


def _text(x: float, y: float, content: str, *, anchor: str = "start", **attributes: str) -> Markup:
    return element("text", content, x=x, y=y, text_anchor=anchor, font_size=12, fill="#222", **attributes)
