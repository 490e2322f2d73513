"""The plot of post-training: means and bands over seeds, of results on all test images."""

from math import log

import pytest

from docs.front_plot import at, front_plot, fronts_of, mean_and_band
from tests.docs.kept import write


def points(*places):
    return [{"relative_bops": cost, "accuracy": accuracy} for cost, accuracy in places]


def test_a_front_has_no_point_with_a_cheaper_one_that_is_as_good_and_reaches_to_the_last_cost():
    methods = {"gates+ranges": [{"points": points((3, 92), (1, 90), (2, 89), (4, 92))}], "other": []}
    assert fronts_of({"methods": methods}, "gates+ranges") == [[(1, 90), (3, 92), (4, 92)]]
    assert fronts_of({"methods": {}}, "gates") == []


def test_the_band_is_that_of_the_costs_that_all_seeds_have():
    found = mean_and_band([[(1.0, 90.0), (4.0, 92.0)], [(2.0, 90.0), (8.0, 94.0)]])
    assert (found[0][0], found[-1][0]) == (pytest.approx(2.0), pytest.approx(4.0))
    assert found[0][1:] == (pytest.approx(90.5), pytest.approx(90.0), pytest.approx(91.0))
    assert found[-1][1:] == (pytest.approx(92.0), pytest.approx(92.0), pytest.approx(92.0))
    assert mean_and_band([]) == []
    assert mean_and_band([[(1.0, 90.0)], [(2.0, 90.0), (8.0, 94.0)]]) == []


def test_between_two_points_accuracy_is_linear_in_the_logarithm_of_the_cost():
    front = [(1.0, 90.0), (4.0, 92.0)]
    assert [at(front, cost) for cost in (0.5, 1.0, 2.0, 4.0, 9.0)] == pytest.approx([90, 90, 91, 92, 92])
    assert at(front, 3.0) == pytest.approx(90 + 2 * log(3) / log(4))


def test_results_on_a_part_of_the_test_images_are_not_mixed_with_those_on_all(tmp_path):
    rows = [
        {"method": "learned", "budget": "4% bops", "relative_bops": 4.0, "accuracy": 92.0},
        {"method": "learned", "budget": "4% bops", "relative_bops": 3.9, "accuracy": 93.0},
        {"method": "learned", "budget": "1% bops", "relative_bops": 1.0, "accuracy": 50.0},
        {"method": "learned", "budget": "500 kB", "relative_bops": 5.0, "accuracy": 93.5},
        {"method": "8/8", "budget": "6.25% bops", "relative_bops": 6.25, "accuracy": 93.0},
    ]
    write(
        tmp_path,
        budgets_resnet20={"images": 1000, "float_accuracy": 91.0, "rows": rows},
        budgets_resnet44={"images": 10000, "float_accuracy": 93.1, "rows": rows},
    )
    plot = front_plot(tmp_path)
    assert [(one.style.name, one.y) for one in plot.points] == [
        ("ResNet-44 within a budget", 92.5), ("ResNet-44 at 8/8", 93.0),
    ]  # fmt: skip
    assert [text for _, _, text, _ in plot.notes] == ["ResNet-44 float 93.10"]
    assert [band for band, _ in plot.bands] == [[(3.95, 92.0, 93.0)]]


def test_the_kept_results_of_four_networks_are_drawn():
    assert [text.split()[0] for _, _, text, _ in front_plot().notes] == [
        f"ResNet-{depth}" for depth in (20, 32, 44, 56)
    ]
