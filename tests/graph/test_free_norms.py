"""Batch norms that are folded into no layer: what each of their channels is made of."""

import pytest
import torch
from torch import Tensor, nn

from bayesbits.graph.trace import trace
from bayesbits.records.topology import FreeNorm, NormInput, Topology

IMAGES = torch.randn(2, 3, 8, 8)


class Joined(nn.Module):
    """Two convolutions with modules behind them, which `join` makes the input of a batch norm from."""

    def __init__(self, join, norm: nn.Module | None = None, channels: int = 8) -> None:
        super().__init__()
        self.one, self.two = (nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()) for _ in range(2))
        self.norm = nn.BatchNorm2d(channels) if norm is None else norm
        self.last, self.join = nn.Conv2d(channels, 2, 1), join

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.join(self.one(x), self.two(x))).relu())


def made_of(*runs: tuple[tuple[str, ...], int]) -> tuple[FreeNorm, ...]:
    return (FreeNorm("norm", tuple(NormInput(tensors, size) for tensors, size in runs)),)


def test_a_concatenation_has_the_parts_of_its_tensors_in_their_order():
    found = trace(Joined(lambda one, two: torch.cat([two, one], dim=1)), IMAGES)
    assert found.free_norms == made_of((("two.output",), 4), (("one.output",), 4))
    assert Topology.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    "join",
    [
        lambda one, two: one + two,
        lambda one, two: torch.nn.functional.pad((one + two).clamp(0, 1), (1, 1)),
        lambda one, two: torch.nn.functional.max_pool2d(one + two, 2),
    ],
    ids=["add", "clip and pad", "max-pool"],
)
def test_an_addition_has_both_of_its_operands(join):
    assert trace(Joined(join, channels=4), IMAGES).free_norms == made_of((("one.output", "two.output"), 4))


@pytest.mark.parametrize(
    "join",
    [
        lambda one, two: torch.cat([one, two], dim=2),  # the positions of a channel have different steps
        lambda one, two: torch.nn.functional.avg_pool2d(one + two, 2),
        lambda one, two: one * two,
        lambda one, two: (one + two).transpose(1, 2)[:, :4],
    ],
    ids=["other dimension", "average", "product", "moved"],
)
def test_of_other_operations_nothing_is_known(join):
    assert trace(Joined(join, channels=4), IMAGES).free_norms == ()


def test_channels_of_which_nothing_is_known_lie_beside_others():
    found = trace(Joined(lambda one, two: torch.cat([one.sigmoid(), two], dim=1)), IMAGES)
    assert found.free_norms == made_of(((), 4), (("two.output",), 4))
    found = trace(Joined(lambda one, two: one + two.mean(dim=(2, 3), keepdim=True), channels=4), IMAGES)
    assert found.free_norms == made_of((("one.output",), 4))


class Own(nn.BatchNorm2d):
    """A class whose forward nobody knows."""


@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm2d(4, affine=False), nn.BatchNorm2d(4, track_running_stats=False), Own(4)],
    ids=["no scale", "no statistics", "another class"],
)
def test_a_norm_without_scale_or_statistics_or_of_another_class_is_left_out(norm):
    assert trace(Joined(lambda one, two: one + two, norm, channels=4), IMAGES).free_norms == ()


def test_the_norm_of_a_layer_and_a_norm_that_runs_twice_are_left_out():
    layers = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    assert trace(layers, IMAGES).free_norms == ()
    norm = nn.BatchNorm2d(4)
    twice = Joined(lambda one, two: norm(one) + two, norm, channels=4)
    assert trace(twice, IMAGES).free_norms == ()
