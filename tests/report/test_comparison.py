"""Runs in groups over seeds, on lines by recipe and method, with the best of them marked, and plans layer by layer."""

from dataclasses import replace
from pathlib import Path

import pytest

from bayesbits.records.front import Front, Point
from bayesbits.records.plan import Plan
from bayesbits.report import comparison
from bayesbits.report.run_data import read_run
from tests.report.compared_runs import compared_runs
from tests.report.made_runs import ENCODER, network, write_made_run
from tests.report.runs import write_bench, write_run


@pytest.fixture
def run(tmp_path):
    write_run(tmp_path)
    return read_run(tmp_path)


@pytest.fixture
def runs(run):
    return compared_runs(run)


def test_the_chart_has_lines_bands_and_published_points(runs):
    chart = comparison.comparison_chart(runs)
    ours, other, paper, others = chart.series
    assert list(ours.points) == [(2.0, 80.0), (5.0, 91.0)]
    assert list(ours.band) == [(2.0, 80.0, 80.0), (5.0, 90.0, 92.0)]
    assert ours.notes[1] == "digits-lenet5, Bayesian Bits, mu 0.01: mean 91% (90 to 92%, 2 seeds) at 5% of BOPs"
    assert "14x fewer (c/s0)" in other.notes[0]
    assert (paper.name, list(paper.points)) == ("the paper", [(0.36, 99.3)])
    assert len(others.points) == 4
    assert chart.unit == "%"
    assert chart.note == "Higher is better; left is cheaper."
    assert comparison.comparison_chart([replace(runs[0], result=None)]) is None


def test_what_post_training_learned_is_a_line(run):
    points = (Point(Plan({}), 8.0, {}, 95.0, 0.1), Point(Plan({}), 2.0, {}, 90.0), Point(Plan({}), 1.0, {}, None))
    series = comparison.comparison_chart([replace(run, folder=Path("sweep"), result=None, front=Front(points))]).series
    assert [(one.name, list(one.points)) for one in series] == [("points of sweep", [(2.0, 90.0), (8.0, 95.0)])]


def test_the_best_runs_are_cheaper_or_better_than_all_others(runs):
    assert comparison.best_runs(runs) == runs[:3]
    lower = [
        replace(one, result=replace(one.result, metrics=(replace(one.result.scores[0], higher_is_better=False),)))
        for one in runs
    ]
    assert comparison.best_runs(lower) == [lower[2]]


def test_the_table_has_every_run_also_one_that_is_not_finished(runs, tmp_path):
    timed = replace(runs[0], bench=write_bench(tmp_path))
    stopped = replace(runs[1], result=None, unfinished="it was stopped", folder=Path("a/s9"))
    first, second = comparison.table([timed, stopped])
    assert [cell.text for cell in first] == [
        "s0", "90.00%", "4%", "-8.25 points, worse", "71 bytes", "2 ms", "best", "mu 0.01", "0",
        "digits-lenet5, Bayesian Bits",
    ]  # fmt: skip
    assert [cell.text for cell in second if cell.text] == ["s9", "not finished", "digits-lenet5"]
    assert len(first) == len(second)


def test_names_are_as_long_as_it_takes_to_tell_runs_apart(runs):
    assert comparison.run_names(runs[:2]) == ["s0", "s1"]
    assert comparison.run_names(runs) == ["a/s0", "a/s1", "b/s0", "c/s0"]


def test_plans_are_compared_layer_by_layer(run):
    other = replace(run, cost=replace(run.cost, layers=(replace(run.cost.layers[0], weight_bits=8),)))
    stem, head = comparison.plan_rows([run, other])
    assert (stem.layer, stem.cells, stem.differs) == ("stem", ("2/8, 6 of 8", "8/8, 6 of 8"), True)
    assert (head.cells, head.differs) == (("4/16, 3", None), False)


def test_what_all_names_begin_with_is_left_out(run):
    def names(*folders):
        return comparison.run_names([replace(run, folder=Path(folder)) for folder in folders])

    assert names("x/digits-mu=0.1-seed=0", "x/digits-mu=0.2-seed=0") == ["mu=0.1-seed=0", "mu=0.2-seed=0"]
    assert names("x/run-1", "x/run-1-again") == ["1", "1-again"]
    assert names("x/alone-1") == ["alone-1"]
    assert names("one", "other") == ["one", "other"]


def test_plans_have_products_where_they_run_and_tables_at_the_end(tmp_path):
    plan = write_made_run(tmp_path, network(ENCODER))
    bits = plan.bits
    rows = {row.layer: row.cells for row in comparison.plan_rows([read_run(tmp_path)])}
    assert list(rows) == ["query", "key", "matmul", "value", "matmul_2", "out", "up", "head", "words", "positions"]
    assert rows["matmul"] == (f"{bits['matmul.left']}/{bits['matmul.right']}",)
    assert rows["words"] == (str(bits["words.weight"]),)
