"""The tables of results: which points count, and how rows become Markdown."""

from docs.results import best_within, front, markdown


def test_the_best_point_within_a_cost_is_the_most_accurate_one_that_costs_no_more():
    points = [
        {"relative_bops": 1.0, "accuracy": 80.0},
        {"relative_bops": 2.0, "accuracy": 90.0},
        {"relative_bops": 2.5, "accuracy": 85.0},
        {"relative_bops": 4.0, "accuracy": 95.0},
    ]
    assert [best_within(points, cost) for cost in (0.5, 1.0, 2.0, 3.9, 4.0)] == [None, 80.0, 90.0, 90.0, 95.0]


def test_rows_become_a_table():
    assert markdown([{"a": 1, "b": "x"}, {"a": 2.5, "b": ""}]) == "| a | b |\n| --- | --- |\n| 1 | x |\n| 2.5 |  |"


def test_a_front_is_the_mean_over_seeds_and_a_dash_where_a_seed_has_no_point():
    lines = front("posttrain-resnet20", (2.71, 1.8)).splitlines()
    assert lines[2] == "| 2.71 | 89.54 | 89.59 | 90.86 | 90.67 | 91.21 |"
    assert lines[3] == "| 1.8 | 82.71 | - | 88.81 | 87.60 | 90.79 |"
