"""The figure of a sweep: points at their means, bars of one standard error, and a line along the front."""

import re
from dataclasses import replace

import pytest

from bayesbits.report.pareto_figure import _cost_ticks, _front, _Place, pareto_figure, series_of
from bayesbits.sweeps.estimate import Estimate
from bayesbits.sweeps.summary import SummaryRow
from tests.report.parsing import Page


def row(method="a", scores=(90.0, 92.0), bops=(1.0, 1.2), recipe="digits", higher=True, **settings):
    return SummaryRow(
        recipe=recipe, method=method, data="digits", model="lenet5", settings=settings,
        seeds=tuple(range(len(scores))), folders=(), metric="accuracy", unit="%", higher_is_better=higher,
        score=Estimate.of(scores), float_score=None, validation=None, relative_bops=Estimate.of(bops),
        weight_bytes=Estimate.of([1.0]), seconds=Estimate.of([1.0]),
    )  # fmt: skip


def elements(rows, tag, style):
    return Page(str(pareto_figure(rows, "x"))).all(tag, class_=style)


def test_every_setting_has_its_mean_its_seeds_and_its_error():
    rows = [row(mu=1), row(mu=2, scores=(95.0,), bops=(3.0,))]
    assert len(elements(rows, "circle", "mean")) == 2 + 1  # and one in the legend
    assert len(elements(rows, "circle", "seed")) == 2  # a single seed is its own mean
    error, sideways = elements(rows, "line", "error")
    first = elements(rows, "circle", "mean")[0]
    middle = (float(error["y1"]) + float(error["y2"])) / 2
    assert middle == pytest.approx(float(first["cy"]), abs=0.02)
    assert sideways["y1"] == sideways["y2"] == first["cy"]
    assert float(sideways["x1"]) < float(first["cx"]) < float(sideways["x2"])
    low, high = (float(one["cy"]) for one in elements(rows, "circle", "seed"))
    assert low - high == pytest.approx(float(error["y1"]) - float(error["y2"]), abs=0.02)  # here both are 2 points


def test_better_is_higher_and_costlier_is_to_the_right():
    rows = [row(scores=(90.0,), bops=(1.0,)), row(scores=(95.0,), bops=(10.0,))]
    first, second, _ = elements(rows, "circle", "mean")
    assert float(second["cy"]) < float(first["cy"])
    assert float(second["cx"]) > float(first["cx"])


def test_the_line_joins_what_is_not_beaten():
    places = [
        _Place(row(higher=True), x, y)
        for x, y in ((1, 50), (2, 60), (3, 40), (4, 45), (5, 10))  # y grows downwards
    ]
    assert [(place.x, place.y) for place in _front(places)] == [(1, 50), (3, 40), (5, 10)]
    places = [_Place(row(higher=False), x, y) for x, y in ((1, 50), (2, 60), (3, 40))]
    assert [(place.x, place.y) for place in _front(places)] == [(1, 50), (2, 60)]


def test_methods_are_series_and_recipes_too_where_there_are_several():
    assert series_of([row("a"), row("b")]) == ["a", "b"]
    assert series_of([row("a"), row("a", recipe="other")]) == ["digits, a", "other, a"]
    text = str(pareto_figure([row("lsq"), row("<b>")], "x"))
    assert "series-0" in text
    assert "series-1" in text
    assert "&lt;b&gt;" in text


def test_one_setting_with_one_seed_is_drawn():
    text = str(pareto_figure([row(scores=(0.0,), bops=(0.0,))], "x"))
    assert "nan" not in text
    assert not re.search(r"-?\binf\b", text)


def test_the_description_tells_everything_that_is_drawn():
    text = Page(str(pareto_figure([row("lsq", mu=3)], "x"))).text
    assert "lsq, mu=3: accuracy 91.00 ± 1.00% at 1.1% of the bit operations" in text
    assert "\nmu=3: accuracy 91.00 ± 1.00% at 1.1% of the bit operations\n" in text  # of the point


def test_labels_cover_neither_each_other_nor_points():
    rows = [row(scores=(90.0,), bops=(1.0,), mu=number) for number in range(6)]  # all at one place, in the middle
    rows += [row(scores=(91.0,), bops=(100.0,), name="at the right edge"), row(scores=(89.0,), bops=(0.01,))]
    labels = elements(rows, "text", "value last")
    assert len(labels) == 4 + 1  # around the point, and to the left of the edge
    boxes = set()
    for one in labels:
        boxes.add((one["x"], one["y"], one["text-anchor"]))
    assert len(boxes) == 5
    assert labels[-1]["text-anchor"] == "end"


def test_the_method_is_not_repeated_in_labels():
    rows = [replace(row("lsq"), settings={"spec.method": "lsq", "search.mu": 3})]
    texts = Page(str(pareto_figure(rows, "x"))).texts
    assert "mu=3" in texts
    assert "method=lsq, mu=3" not in texts


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.3, 30, [0.5, 1, 2, 5, 10, 20]), (1.1, 2.5, [1.5, 2]), (0.24, 0.31, [0.3])],
)
def test_ticks_are_round(low, high, ticks):
    found = _cost_ticks(low, high)
    assert len(found) >= 2
    assert all(low <= tick <= high for tick in found)
    assert {round(tick, 6) for tick in ticks} <= {round(tick, 6) for tick in found}
