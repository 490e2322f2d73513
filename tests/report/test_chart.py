"""Charts hold their values, name every line in words, and give the script what it draws."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesbits.report.chart import Chart, Series, enclosing, ticks
from bayesbits.report.svg import Axis
from tests.report.parsing import Page
from tests.report.runs import HOSTILE

LINE = Series("loss", [(0.0, 4.0), (5.0, 1.0), (10.0, 2.0)])


def parsed(chart, width=380):
    return Page(chart.svg("name", width))


def test_a_line_goes_through_its_points():
    page = parsed(Chart("Loss", "epochs", [LINE]))
    (line,) = page.all("polyline")
    places = [tuple(map(float, place.split(","))) for place in line["points"].split()]
    assert [x for x, _ in places] == [46.0, 209.0, 372.0]
    assert [y for _, y in places] == pytest.approx([22.0, 180 - 158 / 4, 180 - 158 / 2])  # from 0 at 180 to 4 at 22
    (wide,) = parsed(Chart("Loss", "epochs", [LINE]), 760).all("polyline")
    assert wide["points"].split()[-1].startswith("752.0,")


def test_the_script_gets_axes_and_points():
    series = Series("a", [(1.0, 2.0), (4.0, 8.0)], 3, line=False, notes=["first", "second"])
    chart = Chart("Cost", "epochs", [series], unit="%", logarithmic=True, x_logarithmic=True)
    (svg,) = parsed(chart).all("svg", class_="chart")
    data = json.loads(svg["data-chart"])
    assert data["h"] == [1, 5, 46, 372, True]
    assert data["v"] == [2, 10, 180, 22, True]
    assert data["s"] == [["a", [[1, 2], [4, 8]], ["first", "second"], 3]]
    assert svg["tabindex"] == "0"


def test_points_that_a_logarithmic_axis_has_no_place_for_are_left_out():
    chart = Chart(
        "Cost", "epochs", [Series("a", [(1.0, 0.0), (2.0, 5.0)]), Series("b", [(1.0, 0.0)])], logarithmic=True
    )
    assert [(one.name, one.points) for one in chart.shown] == [("a", [(2.0, 5.0)])]


def test_the_legend_has_last_values_and_the_limit():
    points = Series("points", [(1.0, 1.0)], 2, line=False)
    chart = Chart("Cost", "epochs", [LINE, points], unit="%", limit=("budget", 0.5))
    assert chart.legend() == [("s1", "loss", "2%"), ("s2 dots", "points", ""), ("limit", "budget", "0.5%")]


def test_names_of_parts_are_left_out_where_they_do_not_fit():
    series = [Series("loss", [(0.0, 1.0), (100.0, 1.0)])]
    page = parsed(Chart("Loss", "epochs", series, parts=[("float training", 0.0), ("search", 40.0), ("end", 99.0)]))
    assert "float training" in page.texts
    assert "search" in page.texts
    assert "end" not in page.texts
    assert len(page.all("line", class_="border")) == 2


def test_an_axis_that_does_not_begin_at_zero_encloses_the_values():
    (svg,) = parsed(Chart("Accuracy", "epochs", [Series("a", [(0.0, 91.0), (1.0, 98.5)])], from_zero=False)).all(
        "svg", class_="chart"
    )
    low, high, *_ = json.loads(svg["data-chart"])["v"]
    assert 85 <= low <= 91 < 98.5 <= high <= 105


def test_hostile_names_stay_text():
    series = Series(HOSTILE, [(0.0, 1.0), (1.0, 2.0)], notes=[HOSTILE, HOSTILE])
    page = parsed(Chart(HOSTILE, HOSTILE, [series], parts=[(HOSTILE, 0.0)]))
    assert not page.scripts
    assert HOSTILE.replace("\u202e", "\N{REPLACEMENT CHARACTER}") in page.texts


@given(st.floats(1e-8, 1e8), st.floats(1e-8, 1e8))
def test_round_numbers_enclose_any_two(one, other):
    low, high = enclosing(*sorted((one, other)))
    assert low <= min(one, other) * (1 + 1e-6)
    assert high >= max(one, other) * (1 - 1e-6)
    assert 1 <= len(ticks(Axis(low, high, 0, 1, logarithmic=True))) <= 20


def test_a_short_logarithmic_axis_has_ticks_between_the_powers_of_ten():
    assert ticks(Axis(0.5, 10, 0, 1, logarithmic=True)) == pytest.approx([0.5, 1, 2, 5, 10])
    assert ticks(Axis(1, 1e5, 0, 1, logarithmic=True)) == pytest.approx([1, 10, 100, 1e3, 1e4, 1e5])


def test_values_of_the_vertical_axis_have_their_unit():
    assert "2 dB" in parsed(Chart("Errors", "layers", [LINE], unit=" dB")).texts
    long = parsed(Chart("Errors", "layers", [Series("a", [(1, 12.6), (2, 14.4)])], unit=" dB", from_zero=False)).texts
    assert "13.5" in long  # "13.5 dB" would be cut


def test_a_reference_is_a_line_and_in_the_legend():
    chart = Chart("Accuracy", "cost", [LINE], unit="%", from_zero=False, reference=("float network", 8.0))
    (line,) = parsed(chart).all("line", class_="reference")
    assert float(line["y1"]) == float(line["y2"]) < 60  # above the line, whose highest value is 4
    assert chart.legend()[-1] == ("reference", "float network", "8%")


@pytest.mark.parametrize(("highest", "top"), [(99.7, 100.0), (104.0, 110.0)])
def test_an_axis_in_percent_ends_at_100_unless_values_are_above(highest, top):
    (svg,) = parsed(
        Chart("Accuracy", "cost", [Series("a", [(1.0, 70.0), (2.0, highest)])], unit="%", from_zero=False)
    ).all("svg", class_="chart")
    assert json.loads(svg["data-chart"])["v"][1] == top
