"""The strip beside a row: a straight way for the main lane, and curves where lanes begin and join."""

from bayesbits.report.network_graph import LAYER, Node, Row
from bayesbits.report.network_ways import gutter, gutter_below, gutter_width
from tests.report.parsing import Page


def row(**lanes):
    nothing = {"passing": (), "begins": (), "joins": (), "below": ()}
    return Row(Node(LAYER, "conv"), from_above=True, to_below=True, **{**nothing, **lanes})


def path(strip):
    return "".join(found["d"] for found in Page(strip).all("path"))


def test_the_strip_is_as_wide_as_its_lanes():
    assert gutter_width([row()]) == 18
    assert gutter_width([row(), row(begins=(2,)), row(passing=(1,))]) == 18 + 2 * 14


def test_lanes_leave_the_main_one_and_come_back():
    assert path(gutter(row(), 18)) == "M9 0V50M9 50V100"
    assert "M23 0V100" in path(gutter(row(passing=(1,)), 32))
    assert "M9 50C9 80 23 60 23 100" in path(gutter(row(begins=(1,)), 32))
    assert "M23 0C23 40 9 20 9 50" in path(gutter(row(joins=(1,)), 32))


def test_below_an_open_row_the_lanes_go_on():
    assert path(gutter_below(row(below=(2,)), 46)) == "M9 0V100M37 0V100"
