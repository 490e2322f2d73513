"""The points of a sweep: the front is joined, and the others are beside it."""

from dataclasses import replace

from bayesbits.recipes import load
from bayesbits.records.front import Front, Point
from bayesbits.records.plan import Plan
from bayesbits.report.front_chart import front_chart
from tests.report.runs import write_run


def point(cost, score, mu=None):
    return Point(Plan({"w": 4}), cost, {}, score, mu)


def test_the_front_is_a_line_and_worse_points_are_not_on_it():
    front = Front((point(8.0, 93.0, 0.1), point(4.0, 93.5, 0.2), point(2.0, 80.0), point(1.0, None)))
    best, others = front_chart(front, load("digits-lenet5")).series
    assert list(best.points) == [(2.0, 80.0), (4.0, 93.5)]
    assert list(others.points) == [(8.0, 93.0)]
    assert (best.line, others.line) == (True, False)
    assert best.notes == ["score 80 at 2% of BOPs", "score 93.5 at 4% of BOPs, mu 0.2"]


def test_points_without_scores_have_no_chart():
    assert front_chart(Front((point(1.0, None),)), None) is None


def test_the_float_and_the_final_network_are_beside_the_points(tmp_path):
    front, result = Front((point(8.0, 93.0), point(4.0, 93.5))), write_run(tmp_path)
    chart = front_chart(front, load("digits-lenet5"), result)
    assert chart.title == "Test accuracy over cost"
    assert chart.reference == ("float network", 98.25)
    final = chart.series[-1]
    assert (final.name, list(final.points)) == ("final network", [(result.relative_bops, 97.5)])
    lower = replace(result, metrics=(replace(result.scores[0], higher_is_better=False),))
    assert front_chart(front, None, lower).reference is None  # scores are the negative of such a metric
