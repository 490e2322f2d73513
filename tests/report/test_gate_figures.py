"""Strips join equal neighbors and say in words what they show; charts have a line for each gate."""

import pytest

from bayesbits.report.gate_figures import bit_class, gate_chart, gate_strips
from bayesbits.report.training_curves import GatePoint
from tests.report.parsing import Page

POINTS = [
    GatePoint(2.0, {"w": 8, "x": 4}, {"w": {"4": 1.0, "8": 1.0}, "x": {"4": 1.0}}, {}),
    GatePoint(4.0, {"w": 8, "x": 4}, {"w": {"4": 1.0, "8": 0.5}, "x": {"4": 1.0}}, {}),
    GatePoint(8.0, {"w": 2, "x": 4}, {"w": {"4": 0.25, "8": 0.125}, "x": {"4": 1.0}}, {}),
]


def test_a_strip_has_a_rectangle_for_each_width():
    first, second = gate_strips(POINTS)
    assert (first.name, first.bits) == ("w", 2)
    page = Page(first.svg)
    assert [(one["x"], one["width"], one["class"]) for one in page.all("rect")] == [
        ("0", "50", "b8"),
        ("50", "50", "b2"),
    ]
    assert page.all("svg")[0]["aria-label"] == "w: 8 bits until epoch 4, then 2 bits"
    assert [one["width"] for one in Page(second.svg).all("rect")] == ["100"]
    assert gate_strips([]) == []


@pytest.mark.parametrize(("bits", "style"), [(0, "b0"), (2, "b2"), (3, "b4"), (6, "b8"), (32, "b32")])
def test_a_width_has_the_color_of_the_next_usual_one(bits, style):
    assert bit_class(bits) == style


def test_a_chart_has_a_line_for_each_gate():
    chart = gate_chart(POINTS, "w")
    assert [(one.name, one.points) for one in chart.series] == [
        ("4 bits", [(2.0, 1.0), (4.0, 1.0), (8.0, 0.25)]),
        ("8 bits", [(2.0, 1.0), (4.0, 0.5), (8.0, 0.125)]),
    ]
    assert [one.name for one in gate_chart(POINTS, "x").series] == ["4 bits"]
    assert gate_chart(POINTS, "stranger") is None
    assert gate_chart([], "w") is None
