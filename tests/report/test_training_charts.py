"""The charts over a run: which there are, their stages side by side, and the budget's line."""

from dataclasses import replace

import pytest

import bayesbits as bb
from bayesbits.report.run_data import read_run
from bayesbits.report.training_charts import training_charts
from bayesbits.report.training_curves import Curves, Point, Stage
from tests.report.runs import write_run


@pytest.fixture
def run(tmp_path):
    write_run(tmp_path)
    return read_run(tmp_path)


def test_a_run_has_charts_of_loss_and_cost(run):
    loss, cost = training_charts(run)
    assert loss.title == "Loss"
    assert loss.series[0].points == [(20.0, 2.0), (30.0, 1.0), (40.0, 0.5), (45.0, 0.25)]
    assert [part for part, _ in loss.parts] == ["float training", "search", "fine-tuning"]
    assert [start for _, start in loss.parts] == [0.0, 20.0, 40.0]
    assert [one.name for one in cost.series] == ["expected", "counted"]
    assert cost.series[0].points == [(10.0, 80.0), (20.0, 8.0)]  # the search alone
    assert cost.series[1].points == [(10.0, 15.0), (20.0, 10.0)]
    assert cost.limit is None


@pytest.mark.parametrize(("budget", "limit"), [("0.5% bops", 0.5), ("676 BOPs", 100 * 676 / 67584), ("10 kB", None)])
def test_the_budget_is_a_line_in_percent(run, budget, limit):
    recipe = replace(run.recipe, search=bb.SearchConfig(budget=budget))
    found = training_charts(replace(run, recipe=recipe))[1].limit
    assert found == (None if limit is None else ("budget", pytest.approx(limit)))


def test_validation_and_mu_have_charts_of_their_own(run):
    points = (Point(1.0, {"task_loss": 1.0, "mu_relative_bops": 0.5}),)
    stage = Stage("search", 2.0, points, (Point(1.0, {"validation_accuracy": 90.0}),))
    loss, accuracy, mu = training_charts(replace(run, curves=Curves((stage,))))
    assert (accuracy.title, accuracy.unit, accuracy.series[0].points) == (
        "Accuracy on held-back data", "%", [(1.0, 90.0)]
    )  # fmt: skip
    assert (mu.series[0].name, mu.series[0].points) == ("mu of relative bops", [(1.0, 0.5)])
    assert loss.parts == ()


def test_without_metrics_there_is_no_chart(run):
    assert training_charts(replace(run, curves=Curves())) == []
