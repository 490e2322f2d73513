"""The ways of tensors: chains, residual additions, shared inputs and attention, and lanes that do not meet."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.recipes.factories import build_model
from bayesbits.report.network_graph import ADDITION, LAYER, MOST_LANES, network_rows, running_numbers
from tests.report.made_runs import ENCODER, network


def edges(topology):
    """What every node reads, found from the rows alone: the main lane, and the lanes beside it."""
    found, lanes, above = {}, {}, None
    for row in network_rows(topology):
        name = row.node.name or row.node.kind
        found[name] = {above} if row.from_above else set()
        found[name] |= {lanes[lane] for lane in row.joins}
        for lane in row.begins:
            lanes[lane] = name
        above = name
    return found


def trace(model, *shape):
    return bb.trace(model.eval(), torch.zeros(1, *shape))


def test_a_chain_is_one_lane():
    topology = trace(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2)), 4)
    assert edges(topology) == {"input": set(), "0": {"input"}, "2": {"0"}, "3": {"2"}, "output": {"3"}}
    assert all(not row.begins and not row.passing for row in network_rows(topology))


@pytest.fixture(scope="module")
def resnet():
    return trace(build_model("resnet18", {})[0], 3, 32, 32)


def test_residual_ways_go_round_their_block(resnet):
    found = edges(resnet)
    assert found["layer1.0.add"] == {"layer1.0.conv2", "conv1"}  # through a max-pool, which has no row
    assert found["layer1.1.conv1"] == {"layer1.0.add"}
    assert found["layer1.1.add"] == {"layer1.1.conv2", "layer1.0.add"}
    assert found["layer2.0.downsample.0"] == found["layer2.0.conv1"] == {"layer1.1.add"}
    assert found["layer2.0.add"] == {"layer2.0.conv2", "layer2.0.downsample.0"}
    assert found["fc"] == {"layer4.1.add"}
    assert found["output"] == {"fc"}


def test_every_layer_and_addition_has_one_row(resnet):
    rows = network_rows(resnet)
    assert [row.node.name for row in rows if row.node.kind == LAYER] == [layer.name for layer in resnet.layers]
    assert [row.node.name for row in rows if row.node.kind == ADDITION] == [one.name for one in resnet.additions]


def test_lanes_begin_pass_and_join_without_gaps(resnet):
    alive = set()
    for row in network_rows(resnet):
        assert set(row.joins) | set(row.passing) == alive
        alive = (alive - (set(row.joins) - set(row.passing))) | set(row.begins)
        assert set(row.below) == alive
        assert len(row.begins) <= 1
    assert not alive


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        weights = torch.softmax(self.q(x) @ self.k(x).transpose(1, 2), -1)
        return x + self.o(weights @ self.v(x))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.attention, self.head = nn.Linear(4, 8), Attention(), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.attention(self.embed(x)))


def test_queries_keys_and_values_meet_in_the_layer_behind_them():
    found = edges(trace(Mixer(), 5, 4))
    for name in ("q", "k", "v"):
        assert found[f"attention.{name}"] == {"embed"}
    assert found["attention.o"] == {"attention.q", "attention.k", "attention.v"}
    assert found["attention.add"] == {"attention.o", "embed"}
    assert found["head"] == {"attention.add"}


def test_products_are_joined_to_what_they_multiply():
    found = edges(bb.trace(Mixer().eval(), torch.zeros(1, 5, 4), activation_products=True))
    assert found["attention.matmul"] == {"attention.q", "attention.k"}
    assert found["attention.matmul_2"] == {"attention.matmul", "attention.v"}
    assert found["attention.o"] == {"attention.matmul_2"}
    assert found["attention.add"] == {"attention.o", "embed"}


def test_tables_come_first_and_lead_to_the_layers_behind_them():
    topology = network(ENCODER)
    kinds = [row.node.kind for row in network_rows(topology)]
    assert kinds[:4] == ["input", "table", "table", "layer"]
    found = edges(topology)
    assert found["words"] == found["positions"] == {"input"}
    assert found["query"] == found["key"] == found["value"] == {"words", "positions"}


def test_layers_and_products_are_numbered_as_the_picture_has_them():
    numbers = running_numbers(network(ENCODER))
    assert list(numbers) == ["query", "key", "matmul", "value", "matmul_2", "out", "up", "head"]
    assert list(numbers.values()) == list(range(1, 9))


def test_products_without_sources_come_first_and_read_the_input():
    topology = network(ENCODER)
    before = replace(topology, products=tuple(replace(one, sources=()) for one in topology.products))
    found = edges(before)
    assert found["matmul"] == found["matmul_2"] == {"input"}
    assert list(running_numbers(before))[:2] == ["matmul", "matmul_2"]


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4 * (place + 1), 4, 1) for place in range(10))

    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([x, torch.relu(layer(x))], 1)
        return x


def test_many_ways_at_once_share_the_last_lane():
    topology = trace(Dense(), 4, 2, 2)
    rows = network_rows(topology)
    lanes = {lane for row in rows for lane in (*row.begins, *row.passing)}
    assert max(lanes) == MOST_LANES
    reads = edges(topology)
    assert {"layers.2", "layers.1"} <= reads["layers.3"]
