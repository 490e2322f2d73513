"""Curves lie where their numbers say."""

from itertools import pairwise

import pytest

from bayesbits.report.run_data import Point, Stage
from bayesbits.report.training_figure import training_figure
from tests.report.parsing import Page


def curves(page):
    lines = [found["points"].split() for found in page.all("polyline")]
    return [[tuple(map(float, place.split(","))) for place in line] for line in lines]


def test_cost_is_logarithmic_and_loss_linear():
    points = tuple(Point(epoch, 3.0 - epoch, 100 / 10**epoch) for epoch in (0.0, 1.0, 2.0))
    cost, loss = curves(Page(training_figure([Stage("search", 2, points)])))
    for curve in (cost, loss):  # a straight line each: equal factors here, equal differences there
        (across, down), (again_across, again_down) = ((x - a, y - b) for (a, b), (x, y) in pairwise(curve))
        assert across == pytest.approx(again_across, abs=0.02)
        assert down == pytest.approx(again_down, abs=0.02)
        assert across > 0
        assert down > 0


def test_stages_follow_each_other():
    float_stage = Stage("float", 1, (Point(0.5, 2.0, None), Point(1.0, 1.0, None)))
    search = Stage("search", 3, (Point(1.0, 1.0, 50.0), Point(3.0, 0.5, 5.0)))
    page = Page(training_figure([float_stage, search]))
    cost, first, second = curves(page)
    assert first[-1][0] < second[0][0]
    left = first[-1][0] - 2 * (first[-1][0] - first[0][0])  # where epoch 0 is
    assert second[-1][0] - left == pytest.approx(4 * (first[-1][0] - left), abs=0.1)
    assert len(page.all("line", class_="border")) == 1
    assert "0.5" in page.texts
    assert len(cost) == 2


def test_what_was_not_finite_is_left_out_and_nothing_at_all_is_no_figure():
    page = Page(training_figure([Stage("search", 3, (Point(1, 2.0, 0.0), Point(2, None, None), Point(3, 1.0, None)))]))
    assert [len(curve) for curve in curves(page)] == [2]  # of the loss; no cost could be drawn
    assert training_figure([]) is None
    assert training_figure([Stage("search", 1, (Point(1, None, None),))]) is None


def test_a_single_point_is_seen():
    page = Page(training_figure([Stage("search", 1, (Point(1, 0.0, 100.0),))]))
    assert len(page.all("circle")) == 2
