"""Trying a network at other sizes: which sizes change together, and what the network says otherwise."""

import torch
from torch import Tensor, nn

from bayesbits.graph.flat_network import FlatNetwork
from bayesbits.graph.size_trials import SizeGroup, SizeTrials, resized


class Masked(nn.Module):
    """Tokens with a mask of the same length, and a row for every feature, which is fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(10, 6), nn.Linear(6, 2)

    def forward(self, tokens: Tensor, mask: Tensor, row: Tensor) -> Tensor:
        return self.layer(self.table(tokens) * mask[..., None] * row).mean(1)


def trials(network: nn.Module, *tensors: Tensor) -> SizeTrials:
    return SizeTrials(FlatNetwork(network, tensors, {}))


def test_equal_sizes_change_together_and_the_fixed_ones_say_why():
    tokens = torch.zeros(3, 8, dtype=torch.int64)
    found = trials(Masked(), tokens, torch.ones(3, 8), torch.ones(6))
    groups = found.groups()
    assert [group.places for group in groups] == [((0, 0), (1, 0)), ((0, 1), (1, 1))]
    assert [(group.size, group.far, group.is_batch) for group in groups] == [(3, 2, True), (8, 4, False)]


class Reshaped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.reshape(2, 16))


def test_a_fixed_size_is_refused_with_the_words_of_the_network():
    found = trials(Reshaped(), torch.zeros(2, 4, 4))
    assert found.groups() == []
    assert found.refusals[0, 0].startswith("with 3 instead of 2 it raises RuntimeError: shape '[2, 16]' is invalid")
    assert found.refusals[0, 1].startswith("with 2 instead of 4 it raises RuntimeError")


def test_sizes_that_are_equal_by_chance_change_alone():
    network = nn.Sequential(nn.Linear(8, 2))
    assert [group.places for group in trials(network, torch.zeros(1, 8, 8)).groups()] == [((0, 0),), ((0, 1),)]


def test_what_a_network_keeps_between_calls_is_not_touched():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls = nn.Linear(4, 2), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.layer(x)

    network = Counting()
    before = torch.random.get_rng_state()
    assert trials(network, torch.zeros(2, 4)).groups()
    assert network.calls == 0
    assert torch.equal(torch.random.get_rng_state(), before)


def test_near_sizes_have_the_multiples_of_the_size_itself():
    assert list(SizeGroup(((0, 1),), 8, 4).near()) == [7, 6, 4, 9, 10, 12, 16]
    assert list(SizeGroup(((0, 1),), 3, 6).near()) == [2, 4]


def test_resized_examples_are_cut_or_repeated():
    x = torch.arange(3).reshape(1, 3)
    assert [tensor.tolist() for tensor in resized([x, x], [(1, 1)], 2)] == [[[0, 1, 2]], [[0, 1]]]
    assert resized([x], [(0, 1)], 5)[0].tolist() == [[0, 1, 2, 0, 1]]
