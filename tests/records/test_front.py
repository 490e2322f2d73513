"""Fronts: which points are on them, and their JSON form."""

import pytest

from bayesbits.records.front import Front, Point, Range
from bayesbits.records.plan import Plan


def point(cost: float, score: float | None, mu: float | None = None) -> Point:
    return Point(Plan({"w": 4}, {"layer": (0, 2)}), cost, {"w": Range((0.5, -1.25), True)}, score, mu)


def test_pareto_keeps_what_no_other_point_beats():
    points = [point(3, 90), point(5, 89), point(1, 70), point(4, 95), point(4, 94), point(1, 60), point(6, 95)]
    assert [(p.relative_bops, p.score) for p in Front(tuple(points)).pareto().points] == [(1, 70), (3, 90), (4, 95)]


def test_the_best_point_within_a_budget():
    front = Front((point(3, 90), point(1, 70), point(2, 60)))
    assert front.within(2.5).score == 70
    assert front.within(3.0).score == 90
    with pytest.raises(ValueError, match=r"no point costs at most 0\.5%; the cheapest of them costs 1%"):
        front.within(0.5)


def test_points_without_scores_cannot_be_compared():
    with pytest.raises(ValueError, match="give `evaluate`"):
        Front((point(1, None), point(2, 1.0))).pareto()


def test_the_json_form_gives_the_same_front():
    front = Front((point(3, 90.5, 0.01), point(1, None)))
    assert Front.from_json(front.to_json()) == front
    with pytest.raises(ValueError, match="signed: expected bool"):
        Front.from_json(front.to_json().replace("true", "1"))


def test_as_a_table():
    lines = str(Front((point(3, 90.5, 0.01), point(1, None)))).splitlines()
    assert lines[1].split() == ["0.01", "3.0000", "90.5"]
    assert lines[2].split() == ["1.0000"]
