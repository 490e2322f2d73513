"""The rows of the tables: every number of a small run, computed by hand."""

from dataclasses import replace

import pytest

from bayesbits.cost import CostModel
from bayesbits.records.front import Front, Point
from bayesbits.records.plan import Plan
from bayesbits.report import page_tables
from bayesbits.report.run_data import read_run
from tests.report.runs import write_bench, write_run, write_statistics, write_verification


@pytest.fixture
def run(tmp_path):
    """`stem` keeps 6 of 8 channels at 2 x 8 bits, `head` has 4 x 16 bits, and 10 MACs are left in float."""
    write_run(tmp_path)
    write_verification(tmp_path, wrong=12)
    write_statistics(tmp_path)
    return read_run(tmp_path)


def test_the_remainder_is_what_the_layers_leave(run):
    # Of 24 x 2 x 8, 18 x 4 x 16 and 10 x 32 x 32 BOPs the last, and 5 parameters of other modules.
    assert page_tables.remainder(run) == ("10", "87.0%", "20")
    whole = CostModel(replace(run.topology, unsupported=(), other_parameters=0)).count(run.plan)
    assert page_tables.remainder(replace(run, cost=whole)) is None


def test_before_and_after_compare_the_float_with_the_compressed_network(run):
    rows = {name: cells for name, *cells in page_tables.before_and_after(run)}
    assert rows["Test accuracy, higher is better"] == ["98.25%", "97.50%", "-0.75 points, worse"]
    assert rows["BOPs"] == ["67.6 k", "11.8 k", "5.7x fewer"]
    assert rows["MACs"] == ["66", "52", "21% fewer"]
    assert rows["Parameters"] == ["72", "56", "22% fewer"]  # 32 + 8, 24 + 3, 5; 24 + 6, 18 + 3, 5
    assert rows["Weights"] == ["288 bytes", "71 bytes", "4.1x smaller"]
    assert len(page_tables.before_and_after(replace(run, cost=None))) == 1
    assert page_tables.before_and_after(replace(run, cost=None, result=None)) == []


def test_what_was_left_unchanged_has_its_reason(run):
    assert page_tables.fixed_channels(run.topology) == [
        ("input", "is a network input", "4"),
        ("head", "reaches the network's output", "3"),
    ]
    assert page_tables.unsupported(run.topology) == [("mix", "attention product", "reaches the network's output", "10")]


def test_measured_times_are_compared_with_float(run, tmp_path):
    bench = write_bench(tmp_path)
    assert page_tables.times(bench) == [
        ("float", "1", "1", "4 ms", "", "2 MB"),
        ("fast", "1", "1", "2 ms", "2x faster", "500 kB"),
        ("float", "all", "32", "50 ms", "", "2 MB"),
        ("fast", "all", "32", "60 ms", "20% more time", "500 kB"),
    ]
    assert page_tables.slower_layers(bench) == [("head", "Gemm", "40 µs", "30 µs")]


def test_tensors_with_wrong_codes_come_first(run):
    assert page_tables.differing_tensors(run.verification) == [
        ("head.input", "654", "0", "12"),
        ("stem.input", "7,000", "3", "0"),
    ]
    assert page_tables.float_kernels(run.verification) == [("head", "Gemm", "it is wide")]
    rows = dict(page_tables.verification(run.verification))
    assert rows["Integer network against training, layer by layer"] == (
        "3 of 7,654 activation codes differ beside a tie, 12 elsewhere"
    )
    assert rows["Integer kernels"] == "1 of 2 layers"


def test_settings_without_a_value_are_left_out(run):
    rows = dict(page_tables.settings(run))
    assert "Trained weights from" not in rows
    assert rows["Task"] == "classification; loss cross_entropy"
    assert rows["Training time"] == "61 s on abacus (cpu)"
    model = replace(run.recipe.model, checkpoint="weights.pth")
    recipe = replace(run.recipe, model=model, float_training=None)
    changed = dict(page_tables.settings(replace(run, recipe=recipe)))
    assert changed["Trained weights from"] == "weights.pth"
    assert page_tables.settings(replace(run, recipe=None, result=None)) == []


def test_points_of_a_front_are_in_the_order_of_their_cost():
    points = [(8.0, 93.0, 0.1), (4.0, 93.5, 0.25), (2.0, 80.0, None), (1.0, None, None)]
    front = Front(tuple(Point(Plan({}), cost, {}, score, mu) for cost, score, mu in points))
    assert page_tables.points(front) == [
        ("1%", "", "", ""), ("2%", "80", "", "front"), ("4%", "93.5", "0.25", "front"), ("8%", "93", "0.1", "")
    ]  # fmt: skip


def test_what_did_not_change_is_said_and_the_papers_convention_only_where_it_differs(run):
    rows = {row[0]: row for row in page_tables.before_and_after(replace(run, cost=run.float_cost))}
    assert rows["MACs"][3] == "unchanged"
    assert "Relative BOPs, the paper's convention" not in rows
    other = replace(run.cost, bops=run.cost.bops)
    assert ("Relative BOPs, the paper's convention" in {row[0] for row in page_tables.before_and_after(run)}) == (
        f"{other.relative_bops:.3g}" != f"{other.paper_relative_bops:.3g}"
    )
