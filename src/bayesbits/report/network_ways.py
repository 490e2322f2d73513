"""The ways of the data, drawn in a strip beside the rows of the picture, which stretches to the height of a row."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from bayesbits.report.network_graph import Row
from bayesbits.report.svg import EMPTY, element

_LANE, _MAIN = 14, 9.0  # the distance of lanes, and where the main one lies, in pixels


def gutter_width(rows: Sequence[Row]) -> float:
    """The width of the strip beside the rows, in pixels."""
    return _MAIN + _LANE * max((lane for row in rows for lane in (*row.begins, *row.passing)), default=0) + 9


def _x(lane: int) -> float:
    return _MAIN + _LANE * lane


def gutter(row: Row, width: float) -> Markup:
    """The ways beside a row, in a box of height 100 that stretches; a node lies at half of it."""
    main = _x(0)
    ways = []
    if row.from_above:
        ways.append(f"M{main:g} 0V50")
    if row.to_below:
        ways.append(f"M{main:g} 50V100")
    ways += [f"M{_x(lane):g} 0V100" for lane in row.passing]
    ways += [f"M{_x(lane):g} 0C{_x(lane):g} 40 {main:g} 20 {main:g} 50" for lane in row.joins]
    ways += [f"M{main:g} 50C{main:g} 80 {_x(lane):g} 60 {_x(lane):g} 100" for lane in row.begins]
    return _strip(width, "".join(ways))


def gutter_below(row: Row, width: float) -> Markup:
    """The ways beside the tensors of a row that is open."""
    lanes = [*([0] if row.to_below else []), *row.below]
    return _strip(width, "".join(f"M{_x(lane):g} 0V100" for lane in lanes))


def _strip(width: float, ways: str) -> Markup:
    path = element("path", d=ways) if ways else EMPTY
    return element(
        "svg", path, viewBox=f"0 0 {width:g} 100", preserveAspectRatio="none", class_="ways", aria_hidden="true",
        width=width,
    )  # fmt: skip
