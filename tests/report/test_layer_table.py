"""The rows of the table of layers: every number of a small run, computed by hand."""

from dataclasses import replace

import pytest

from bayesbits.cost import CostModel
from bayesbits.records.topology import Table
from bayesbits.report import page_tables
from bayesbits.report.layer_table import bits_word, layers, parts
from bayesbits.report.run_data import read_run
from tests.report.made_runs import ENCODER, network, write_made_run
from tests.report.runs import write_run, write_statistics


@pytest.fixture
def run(tmp_path):
    """`stem` keeps 6 of 8 channels at 2 x 8 bits, `head` has 4 x 16 bits, and 10 MACs are left in float."""
    write_run(tmp_path)
    write_statistics(tmp_path)
    return read_run(tmp_path)


def test_layers_have_their_bits_channels_and_costs(run):
    # MACs: 4 x 6, 6 x 3 and 10; BOPs: 24 x 2 x 8, 18 x 4 x 16 and 10 x 32 x 32. Bytes: 24 x 2 bits + 6 biases,
    # 18 x 4 bits + 3 biases, and 5 parameters of other modules.
    stem, head = layers(run)
    assert [cell.text for cell in stem] == ["1", "stem", "2", "8", "4", "6 of 8", "24", "3.3%", "30", "12.5"]
    assert [cell.text for cell in head] == ["2", "head", "4", "16", "6 of 8", "3", "18", "9.8%", "21", "30.0"]
    assert [cell.value for cell in head[:7]] == [2, "head", 4, 16, 6, 3, 18]
    assert head[7].value == pytest.approx(100 * 1152 / 11776)


def test_tables_of_embeddings_follow_the_layers(run):
    tables = (Table("words", "words.weight", 5, 3, ("words",)),)
    cost = CostModel(replace(run.topology, tables=tables)).count(
        replace(run.plan, bits={**run.plan.bits, "words.weight": 4})
    )
    words = layers(replace(run, cost=cost))[2]
    assert [cell.text for cell in words] == ["3", "words", "4", "", "", "", "0", "0.0%", "8", ""]
    assert page_tables.remainder(replace(run, cost=cost)) == ("10", "87.0%", "20")


def test_weights_of_recurrent_layers_have_macs_and_read_float_activations(run):
    tables = (Table("cell.weight_ih_l0", "cell.weight_ih_l0", 6, 3, ("cell",), "recurrent", 90),)
    cost = CostModel(replace(run.topology, tables=tables)).count(
        replace(run.plan, bits={**run.plan.bits, "cell.weight_ih_l0": 4})
    )
    row = layers(replace(run, cost=cost))[2]
    share = f"{100 * 11520 / (11776 + 11520):.1f}%"
    name = "cell.weight_ih_l0"
    assert [cell.text for cell in row] == ["3", name, "4", "float", "", "", "90", share, "9", ""]


def test_layers_without_statistics_have_no_error_and_are_sorted_last(run):
    last = layers(replace(run, statistics=None))[0][-1]
    assert (last.text, last.value) == ("", 1e9)
    assert layers(replace(run, cost=None)) == []


def test_products_are_where_they_run_with_the_bits_of_both_operands(tmp_path):
    bits = write_made_run(tmp_path, network(ENCODER)).bits
    run = read_run(tmp_path)
    rows = layers(run)
    assert [row[1].text for row in rows[:5]] == ["query", "key", "matmul", "value", "matmul_2"]
    assert [row[0].value for row in rows] == list(range(1, 11))
    product = rows[2]
    assert [cell.text for cell in product[2:7]] == [str(bits["matmul.left"]), str(bits["matmul.right"]), "", "", "576"]
    assert product[-1].text  # its error
    assert [row[1].text for row in rows[-2:]] == ["words", "positions"]


def test_parts_and_bits_are_said_as_people_say_them():
    assert parts(6, 2, 2) == "6 layers, 2 products of two activations and 2 tables"
    assert parts(1, 0, 0) == "1 layer"
    assert parts(2, 1, 0) == "2 layers and 1 product of two activations"
    assert (bits_word(4), bits_word(32)) == ("4", "float")
