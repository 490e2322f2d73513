"""The rows of the tables: every number of a small run, computed by hand."""

from dataclasses import replace

import pytest

from bayesbits.records.topology import Addition
from bayesbits.report import page_tables
from bayesbits.report.layer_figure import LayerBars
from bayesbits.report.run_data import read_run
from tests.report.runs import write_run, write_verification


@pytest.fixture
def run(tmp_path):
    """`stem` keeps 6 of 8 channels at 2 x 8 bits, `head` has 4 x 16 bits, and 10 MACs are left in float."""
    write_run(tmp_path)
    write_verification(tmp_path, wrong=12)
    return read_run(tmp_path)


def test_layers_remainder_and_total_add_up(run):
    # MACs: 4 x 6, 6 x 3 and 10; BOPs: 24 x 2 x 8, 18 x 4 x 16 and 10 x 32 x 32. Bytes: 24 x 2 bits + 6 biases,
    # 18 x 4 bits + 3 biases, and 5 parameters of other modules.
    assert page_tables.layers(run) == [
        ("stem", "2", "8", "4", "6 of 8", "24", "384", "3.3%", "30"),
        ("head", "4", "16", "6 of 8", "3", "18", "1,152", "9.8%", "21"),
    ]
    assert page_tables.remainder(run) == [("(left in float)", "32", "32", "", "", "10", "10,240", "87.0%", "20")]
    assert page_tables.total(run) == ("total", "", "", "", "", "52", "11,776", "100%", "71")
    *_, last = page_tables.layer_bars(run)
    assert last == LayerBars("(left in float)", 32, 32, 0, 0, 0, 0, pytest.approx(100 * 10240 / 11776))


def test_the_headline_names_score_cost_and_size(run):
    assert page_tables.headline(run) == [
        ("Test accuracy", "97.50%", "float network 98.25%, -0.75 points, worse; higher is better"),
        ("Relative bit operations", "17.4%", "5.7x fewer than at 32 bits"),
        ("Weights", "71 bytes", "4.1x smaller than 288 bytes"),
    ]


def test_before_and_after_compare_the_float_with_the_compressed_network(run):
    rows = {name: cells for name, *cells in page_tables.before_and_after(run)}
    assert rows["Test accuracy, higher is better"] == ["98.25%", "97.50%", "-0.75 points, worse"]
    assert rows["BOPs"] == ["67,584", "11,776", "5.7x fewer"]
    assert rows["MACs"] == ["66", "52", "1.3x fewer"]
    assert rows["Parameters"] == ["72", "56", "1.3x fewer"]  # 32 + 8, 24 + 3, 5; 24 + 6, 18 + 3, 5
    assert rows["Bytes of weights"] == ["288", "71", "4.1x smaller"]


def test_operands_of_residual_additions_have_their_bits(run):
    assert page_tables.residual_operands(run) == []
    topology = replace(run.topology, additions=(Addition("add", ("stem", "head")),))
    residual = replace(run, topology=topology, plan=replace(run.plan, bits={**run.plan.bits, "head.output": 4}))
    assert page_tables.residual_operands(residual) == [("head.output", "4")]  # the other one has no quantizer


def test_what_was_left_unchanged_has_its_reason(run):
    assert page_tables.fixed_channels(run) == [
        ("input", "is a network input", "4"),
        ("head", "reaches the network's output", "3"),
    ]
    assert page_tables.unsupported(run) == [("mix", "attention product", "reaches the network's output", "10")]


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
    assert rows["Task"] == "classification; loss cross_entropy, metrics accuracy"
    assert rows["Training time"] == "61 s on abacus (cpu)"
    model = replace(run.recipe.model, checkpoint="weights.pth")
    recipe = replace(run.recipe, model=model, float_training=None)
    changed = dict(page_tables.settings(replace(run, recipe=recipe)))
    assert changed["Trained weights from"] == "weights.pth"
