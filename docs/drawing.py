"""Plots of the page of results as SVG: axes, lines, bands, markers with error bars, and labels that do not overlap.

A label that has no place (see `docs.labels`) is left out: `unlabeled` then has it, for the words under the plot.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import hypot

from markupsafe import Markup

from bayesbits.report.svg import Axis, element
from docs.labels import CHARACTER, SIZE, TEXT, Box, along_line, beside_line, free_place, nearest_place

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 740, 56, 16, 12, 46
ROW = 17
FONT = "Arial, Helvetica, sans-serif"
INK, FAINT, GRID = "#17202a", "#5a6775", "#e4e8ec"
COLORS = ("#c1272d", "#1f5fa8", "#0e7f76", "#c9690c", "#7a4f9a", "#6b7785", "#8a6d1a", "#2c8c3c")


@dataclass(frozen=True)
class Style:
    """How the points of a series look."""

    name: str
    color: str
    shape: str = "circle"
    filled: bool = True


@dataclass(frozen=True)
class Point:
    """A marker at a place of the axes."""

    x: float
    y: float
    style: Style
    label: str = ""
    x_error: float | None = None
    y_error: float | None = None

    @property
    def words(self) -> str:
        """What is shown where the pointer rests on it."""
        errors = [f" ± {one:.2g}" if one else "" for one in (self.x_error, self.y_error)]
        return f"{self.label or self.style.name}: {self.y:.2f}{errors[1]} at {self.x:.3g}{errors[0]}"


@dataclass
class Plot:
    """A plot; `svg` draws it."""

    title: str
    x_label: str
    y_label: str
    x: tuple[float, float]
    y: tuple[float, float]
    x_ticks: Sequence[float]
    logarithmic: bool = True
    height: int = 420
    points: list[Point] = field(default_factory=list)
    lines: list[tuple[Sequence[tuple[float, float]], Style]] = field(default_factory=list)
    bands: list[tuple[Sequence[tuple[float, float, float]], Style]] = field(default_factory=list)
    levels: list[tuple[str, float]] = field(default_factory=list)
    notes: list[tuple[float, float, str, str]] = field(default_factory=list)
    """Texts at places of the axes, with their colors."""
    legend: Sequence[Style] | None = None
    """The series of the legend; None: all that have a name."""
    order: Sequence[Style] = ()
    y_ticks: Sequence[float] | None = None
    unlabeled: list[str] = field(default_factory=list)

    def svg(self) -> Markup:
        """The whole plot."""
        keys = self._keys()
        rows = _legend_rows(keys)
        top = TOP + 22 + ROW * len(rows)
        across = Axis(*self.x, LEFT, WIDTH - RIGHT, self.logarithmic)
        up = Axis(*self.y, self.height - BOTTOM, top)
        parts = [element("rect", width=WIDTH, height=self.height, rx=6, fill="#ffffff")]
        parts.append(draw_text(LEFT, TOP + 8, self.title, size=13.5, weight="600"))
        for number, row in enumerate(rows):
            parts += [part for style, x in row for part in _key(style, x, TOP + 26 + ROW * number)]
        parts += self._grid(across, up, top)
        for values, style in self.bands:
            edge = [(x, high) for x, _, high in values] + [(x, low) for x, low, _ in reversed(values)]
            corners = " ".join(f"{across.position(x):.1f},{up.position(y):.1f}" for x, y in edge)
            parts.append(element("polygon", points=corners, fill=style.color, fill_opacity=0.16))
        for way, style in self.lines:
            corners = " ".join(f"{across.position(x):.1f},{up.position(y):.1f}" for x, y in way)
            look = {"stroke_width": 1.8} if style.filled else {"stroke_width": 1.3, "stroke_dasharray": "5 4"}
            parts.append(element("polyline", points=corners, fill="none", stroke=style.color, **look))
        parts += self._points(across, up, top)
        for x, y, text, color in self.notes:
            parts.append(draw_text(across.position(x), up.position(y) - 4, text, color=color))
        return element(
            "svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {self.height}", width="100%",
            role="img", aria_label=self.title, font_family=FONT,
        )  # fmt: skip

    def _keys(self) -> list[Style]:
        """The series of the legend, in the order that is given, or else that in which they first appear."""
        if self.legend is not None:
            return list(self.legend)
        styles = [one.style for one in self.points] + [style for _, style in self.lines]
        found = [style for style in dict.fromkeys(styles) if style.name]
        return sorted(found, key=lambda style: self.order.index(style) if style in self.order else len(self.order))

    def _grid(self, across: Axis, up: Axis, top: float) -> list[Markup]:
        parts, floor = [], self.height - BOTTOM
        for tick in self.x_ticks:
            x = across.position(tick)
            parts += [
                draw_line(x, top, x, floor, GRID),
                draw_text(x, floor + 16, f"{tick:g}", anchor="middle", color=FAINT),
            ]
        for tick in up.ticks() if self.y_ticks is None else self.y_ticks:
            y = up.position(tick)
            parts += [
                draw_line(LEFT, y, WIDTH - RIGHT, y, GRID),
                draw_text(LEFT - 7, y + 4, f"{tick:g}", anchor="end", color=FAINT),
            ]
        for _, value in self.levels:
            y = up.position(value)
            parts.append(draw_line(LEFT, y, WIDTH - RIGHT, y, FAINT, dashes="5 4"))
        parts.append(draw_text((LEFT + WIDTH - RIGHT) / 2, self.height - 9, self.x_label, anchor="middle"))
        middle = (top + floor) / 2
        parts.append(draw_text(14, middle, self.y_label, anchor="middle", transform=f"rotate(-90 14 {middle:g})"))
        return parts

    def _points(self, across: Axis, up: Axis, top: float) -> list[Markup]:
        """Markers, error bars, and the labels that have a place."""
        frame = (LEFT + 1.0, top + 1.0, WIDTH - RIGHT - 1.0, self.height - BOTTOM - 1.0)
        places = [(across.position(one.x), up.position(one.y)) for one in self.points]
        taken: list[Box] = [(x - SIZE - 1, y - SIZE - 1, x + SIZE + 1, y + SIZE + 1) for x, y in places]
        for way, _ in self.lines:
            taken += beside_line([(across.position(x), up.position(y)) for x, y in way])
        bars, markers = [], []
        for one, (x, y) in zip(self.points, places, strict=True):
            own, boxes = _bars(one, x, y, across, up)
            bars += own
            taken += boxes
            markers.append(element("g", element("title", one.words), marker(one.style, x, y)))
        labels: list[Markup] = []
        for name, value in self.levels:
            box = along_line(name, up.position(value), taken, frame)
            taken.append(box)
            labels.append(draw_text(box[0], box[3] - 3, name, color=FAINT))
        self.unlabeled = []
        for one, place in zip(self.points, places, strict=True):
            if one.label:
                box = free_place(one.label, place, taken, frame)
                if box is None:
                    self.unlabeled.append(one.words)
                    continue
                taken.append(box)
                labels += _label(one, place, box)
        return [*bars, *labels, *markers]


def _label(point: Point, place: tuple[float, float], box: Box) -> list[Markup]:
    end = nearest_place(place, box)
    far = hypot(end[0] - place[0], end[1] - place[1]) > 2 * SIZE + 4
    line = [draw_line(*place, *end, point.style.color, width=0.7)] if far else []
    halo = {"stroke": "#ffffff", "stroke_width": "3", "paint_order": "stroke"}  # over lines of the grid
    middle = (box[0] + box[2]) / 2
    return [*line, draw_text(middle, box[3] - 3, point.label, anchor="middle", color=point.style.color, **halo)]


def _bars(point: Point, x: float, y: float, across: Axis, up: Axis) -> tuple[list[Markup], list[Box]]:
    """The error bars of a point, and the room that they take."""
    parts: list[Markup] = []
    boxes: list[Box] = []
    if point.y_error:
        above, below = up.position(point.y + point.y_error), up.position(point.y - point.y_error)
        parts.append(draw_line(x, above, x, below, point.style.color, width=1.3))
        parts += [draw_line(x - 4, end, x + 4, end, point.style.color, width=1.3) for end in (above, below)]
        boxes.append((x - 4, above - 1, x + 4, below + 1))
    if point.x_error:
        left, right = (across.position(max(point.x + side * point.x_error, across.low)) for side in (-1, 1))
        parts.append(draw_line(left, y, right, y, point.style.color, width=1.3))
        parts += [draw_line(end, y - 4, end, y + 4, point.style.color, width=1.3) for end in (left, right)]
        boxes.append((left - 1, y - 4, right + 1, y + 4))
    return parts, boxes


def marker(style: Style, x: float, y: float) -> Markup:
    """A marker of a series."""
    look = {"fill": style.color if style.filled else "#ffffff", "stroke": style.color, "stroke_width": 1.6}
    if style.shape == "circle":
        return element("circle", cx=x, cy=y, r=SIZE - 0.5, **look)
    if style.shape == "band":
        band = element("rect", x=x - 7, y=y - 5, width=14, height=10, fill=style.color, fill_opacity=0.2)
        return band + draw_line(x - 7, y, x + 7, y, style.color, width=1.8, dashes="none" if style.filled else "5 4")
    corners = {
        "square": ((-4, -4), (4, -4), (4, 4), (-4, 4)),
        "diamond": ((0, -6), (6, 0), (0, 6), (-6, 0)),
        "triangle": ((0, -5.5), (5, 4), (-5, 4)),
    }[style.shape]
    return element("polygon", points=" ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners), **look)


def _legend_rows(styles: Sequence[Style]) -> list[list[tuple[Style, float]]]:
    """The legend in rows that fit the width, each entry with its place."""
    rows: list[list[tuple[Style, float]]] = []
    x = 0.0
    for style in styles:
        width = 26 + CHARACTER * len(style.name)
        if not rows or x + width > WIDTH - RIGHT:
            rows.append([])
            x = LEFT
        rows[-1].append((style, x))
        x += width
    return rows


def _key(style: Style, x: float, y: float) -> list[Markup]:
    return [marker(style, x + 5, y), draw_text(x + 15, y + 4, style.name)]


def draw_line(
    x1: float, y1: float, x2: float, y2: float, color: str, *, width: float = 1.0, dashes: str = "none"
) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=color, stroke_width=width, stroke_dasharray=dashes)


def draw_text(
    x: float, y: float, content: str, *, anchor: str = "start", size: float = TEXT, color: str = INK,
    weight: str = "400", **attributes: str,
) -> Markup:  # fmt: skip
    return element(
        "text", content, x=x, y=y, text_anchor=anchor, font_size=size, font_weight=weight, fill=color, **attributes
    )
