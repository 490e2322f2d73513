"""What a row is and costs, in words."""

from dataclasses import replace

import pytest

from bayesbits.cost import CostModel
from bayesbits.graph.trace import trace
from bayesbits.records.plan import Plan
from bayesbits.report.network_graph import ADDITION, LAYER, PRODUCT, TABLE, Node
from bayesbits.report.network_words import Description, describe, layer_words
from tests.nn.recurrent import Sequences, inputs
from tests.report.made_runs import ENCODER, network
from tests.report.runs import topology


def test_layers_are_described_by_kernel_and_channels():
    linear = topology().layer("stem")
    assert layer_words(linear) == "linear, 4 to 8"
    conv = replace(linear, kind="conv", weight_shape=(8, 4, 3, 5))
    assert layer_words(conv) == "conv 3 x 5, 4 to 8"
    assert layer_words(replace(conv, groups=2)) == "conv 3 x 5, 4 to 8 in 2 groups"
    assert layer_words(replace(conv, groups=8, depthwise=True)) == "depthwise conv 3 x 5, 8 channels"
    assert layer_words(replace(conv, kind="conv_transpose")) == "transposed conv 3 x 5, 4 to 8"


@pytest.fixture(scope="module")
def encoder():
    return network(ENCODER)


def test_costs_are_those_of_the_plan(encoder):
    plan = Plan({**Plan.uniform(encoder, 4, 8).bits, "words.weight": 4, "matmul.left": 2, "matmul.right": 4})
    cost = CostModel(encoder).count(plan)
    table = describe(encoder, Node(TABLE, "words"), cost)
    # 20 rows of 16 weights with 4 bits
    assert (table.words, table.share) == ("table, 20 x 16", None)
    assert table.costs.startswith("160 bytes")
    product = describe(encoder, Node(PRODUCT, "matmul"), cost)
    # 6 queries times 6 keys of 16 features, at 2 x 4 bits
    assert product.words == "product of two activations"
    assert product.costs.startswith("576 MACs, 4,608 BOPs; computed by matmul")
    assert product.share == pytest.approx(100 * 4608 / cost.bops)
    layer = describe(encoder, Node(LAYER, "up"), cost)
    assert layer.costs.startswith("3,072 MACs, 98,304 BOPs, 384 bytes; 16 of 16 channels in, 32 of 32 out")
    assert layer.kept == (32, 32)


def test_a_weight_of_a_recurrent_layer_has_a_share():
    recurrent = trace(Sequences(), inputs(1))
    plan = Plan({**Plan.uniform(recurrent, 4, 8).bits, "cell.weight_hh_l0": 2})
    cost = CostModel(recurrent).count(plan)
    found = describe(recurrent, Node(TABLE, "cell.weight_hh_l0"), cost)
    assert found.words == "recurrent weight, 24 x 6"
    assert found.costs == "432 MACs, 27,648 BOPs, 36 bytes; activations are float."
    assert found.share == pytest.approx(100 * 27648 / cost.bops)
    assert describe(recurrent, Node(TABLE, "cell.weight_hh_l0"), None).costs == ""


def test_without_a_plan_there_are_no_costs(encoder):
    for kind, name in ((TABLE, "words"), (PRODUCT, "matmul"), (LAYER, "up")):
        found = describe(encoder, Node(kind, name), None)
        assert found.words
        assert (found.costs, found.share, found.kept) == ("", None, None)
    assert describe(encoder, Node(ADDITION, "add"), None) == Description()
