"""Bytes and parameters, counted by hand, and the table that shows them."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bayesbits.cost import CostModel
from bayesbits.cost.size import packed_bytes
from bayesbits.graph.trace import trace
from bayesbits.records.plan import Plan
from tests.graph.networks import ROWS, Tied, traced
from tests.networks import traced_once, zoo


@given(st.integers(0, 10**9), st.integers(0, 32))
def test_packed_bytes_hold_every_bit_and_waste_less_than_a_byte(elements: int, bits: int) -> None:
    assert 0 <= 8 * packed_bytes(elements, bits) - elements * bits < 8


def test_lenet5_by_hand() -> None:
    network = zoo("lenet5")
    model = CostModel(network)
    weights, biases = 32 * 25 + 64 * 32 * 25 + 1024 * 512 + 5120, 32 + 64 + 512 + 10
    assert (model.dense().parameters, model.dense().weight_bytes) == (weights + biases, 4 * (weights + biases))
    cost = model.count(Plan(Plan.uniform(network, weights=2).bits, {"features.0": tuple(range(31))}))
    assert [layer.parameters for layer in cost.layers] == [31 * 26, 64 * 31 * 25 + 64, 1024 * 512 + 512, 5130]
    codes = [(31 * 25 * 2 + 7) // 8, 64 * 31 * 25 // 4, 1024 * 512 // 4, 5120 // 4]
    expected = [code + 4 * bias for code, bias in zip(codes, (31, 64, 512, 10), strict=True)]
    assert [layer.weight_bytes for layer in cost.layers] == expected
    assert cost.weight_bytes == sum(expected)


def test_a_folded_batch_norm_leaves_a_bias() -> None:
    layers = CostModel(traced("residual")[2]).dense().layers
    assert [layer.parameters for layer in layers] == [6 * 27 + 6, 24 + 4, 6 * 36 + 6, 30 + 5]


def test_a_tied_weight_counts_once_and_each_bias_for_itself() -> None:
    cost = CostModel(traced_once(Tied, ROWS)).dense()
    assert [layer.parameters for layer in cost.layers] == [16 + 4, 4, 8 + 2]
    assert cost.weight_bytes == 4 * (16 + 4 + 4 + 8 + 2)


def test_depthwise_weights() -> None:
    network = traced("depthwise")[2]
    cost = CostModel(network).count(Plan(Plan.uniform(network).bits, {"expand": (0, 1)}))
    assert [layer.parameters for layer in cost.layers] == [2 * 3 + 2, 2 * 9 + 2, 2 * 4 + 4, 8 + 2]


def test_what_stays_in_float_is_counted_too():
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.cell = nn.Embedding(100, 16), nn.LSTM(16, 8, batch_first=True)
            self.scale, self.head = nn.LayerNorm(8), nn.Linear(8, 4)

        def forward(self, x):
            return self.head(self.scale(self.cell(self.words(x))[0]))

    model = Words().eval()
    topology = trace(model, torch.arange(6).reshape(2, 3))
    every = sum(parameter.numel() for parameter in model.parameters())
    assert topology.other_parameters == every - (8 * 4 + 4) - 100 * 16 - 32 * 16 - 32 * 8
    cost = CostModel(topology).dense()
    assert (cost.parameters, cost.weight_bytes) == (every, 4 * every)
    assert "(float)" in str(cost)


def test_the_bytes_of_a_table_are_counted_at_its_width_and_it_has_no_bit_operations():
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2))
    topology = trace(model, torch.arange(4))
    plan = Plan.uniform(topology, 8, 8)
    bits = {**plan.bits, "0.weight": 4}
    model_of_cost = CostModel(topology)
    cost = model_of_cost.count(Plan(bits))
    assert [(table.name, table.bits, table.weight_bytes, table.parameters) for table in cost.tables] == [
        ("0", 4, 8, 15)
    ]
    assert (cost.weight_bytes, cost.parameters) == (8 + 6 + 2 * 4, 15 + 6 + 2)
    assert (cost.macs, cost.bops) == (4 * 6, 4 * 6 * 64)
    unnamed = {name: width for name, width in bits.items() if name != "0.weight"}
    assert model_of_cost.count(Plan(unnamed)).weight_bytes == 15 * 4 + 6 + 8, "a plan of before the tables: float"
    widths = {name: torch.tensor(float(width)) for name, width in bits.items()}
    assert model_of_cost.weight_bytes(widths, {}).item() == 7.5 + 6 + 8
    del widths["0.weight"]
    assert model_of_cost.weight_bytes(widths, {}).item() == 60 + 6 + 8
    assert "0.weight" not in str(cost)
    assert "15" in str(cost).splitlines()[2]
