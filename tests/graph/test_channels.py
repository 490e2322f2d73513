"""Channels that belong together, and those that can be removed: zeros from their producers arrive as zeros."""

import pytest
import torch
from torch import Tensor, nn

from bayesbits.graph.channels import ChannelWalk
from bayesbits.graph.exported_program import export
from bayesbits.graph.layers import find_layers
from bayesbits.graph.trace import trace
from bayesbits.records.topology import Topology
from tests.graph.networks import OWN, ROWS, TRANSFORMERS, Tied, traced
from tests.graph.removal import check_every_group


def removable(topology: Topology) -> dict[str, int]:
    return {group.name: group.size for group in topology.removable_groups}


@pytest.mark.parametrize("name", [*OWN, *TRANSFORMERS])
def test_zeros_arrive_as_zeros(name: str) -> None:
    check_every_group(*traced(name))


def test_classes_are_numbered_without_gaps_and_groups_are_runs() -> None:
    for name in OWN:
        _, _, topology = traced(name)
        assert [channel for group in topology.groups for channel in group.channels] == list(range(topology.channels))
        assert len({group.name for group in topology.groups}) == len(topology.groups)
        for layer in topology.layers:
            for channel in layer.in_channels:
                assert layer.name in topology.group_of(channel).consumers
            for channel in layer.out_channels:
                assert layer.name in topology.group_of(channel).producers


def test_depthwise_follows_its_producer() -> None:
    _, _, topology = traced("depthwise")
    assert removable(topology) == {"expand": 8, "reduce": 4}
    layer = topology.layer("filter")
    assert layer.depthwise
    assert layer.in_channels == layer.out_channels == topology.layer("expand").out_channels
    assert layer.macs == 2 * 64 * 8 * 9
    assert topology.group("expand").producers == ("expand", "filter")
    assert topology.group("expand").consumers == ("filter", "reduce")


def test_shortcut_of_padded_channels() -> None:
    _, _, topology = traced("padded shortcut")
    stem, down = topology.layer("stem").out_channels, topology.layer("down").out_channels
    assert down[2:6] == stem
    assert removable(topology) == {"stem": 4, "down": 4}
    assert topology.group("stem").producers == ("stem", "down")
    assert topology.group("down").producers == ("down",)
    assert topology.group("down").consumers == ("head",)


def test_channels_are_followed_through_a_shuffle() -> None:
    _, _, topology = traced("shuffled")
    first, halved = topology.layer("first").out_channels, topology.layer("halved").out_channels
    assert topology.layer("halved").in_channels == first[4:]
    assert topology.layer("last").in_channels == tuple(c for pair in zip(first[:4], halved, strict=True) for c in pair)
    assert removable(topology) == {"first": 4, "first#2": 4, "halved": 4, "last": 3}


def test_tied_weights() -> None:
    topology = trace(Tied(), ROWS)
    assert topology.layer("first").parameter == topology.layer("second").parameter == "first.weight"
    assert {topology.group(name).reason for name in ("first", "second")} == {"tied weights (first.weight)"}


def test_a_tensor_changed_in_place_is_read_as_it_is_then() -> None:
    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            x[:, :2].sigmoid_()
            return self.last(x)

    topology = trace(Changed(), ROWS)
    reasons = [topology.group_of(channel).reason for channel in topology.layer("first").out_channels]
    assert all(reasons[:2])


def test_a_grouped_convolution_keeps_its_channels_and_those_that_it_reads() -> None:
    topology = trace(
        nn.Sequential(nn.Conv1d(2, 4, 1), nn.Conv1d(4, 6, 1, groups=2), nn.Conv1d(6, 2, 1)), torch.ones(1, 2, 3)
    )
    assert topology.group("0").reason == "feeds grouped convolution 1"
    assert topology.group("1").reason == "grouped convolution 1"
    assert topology.removable_groups == ()


def test_an_error_names_the_place_in_the_network() -> None:
    class Failing(ChannelWalk):
        def passes(self, node, operands, foreign):  # type: ignore[no-untyped-def]
            raise ArithmeticError

    program = export(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), (torch.ones(1, 2),), {})
    with pytest.raises(ArithmeticError) as caught:
        Failing(program, find_layers(program), {}).run()
    assert caught.value.__notes__ == ["while the channels were followed through relu, in module '1'"]
