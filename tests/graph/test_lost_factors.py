"""Channels whose gate could not learn stay: behind a sign or a comparison its factor does not show."""

import pytest
import torch
from torch import Tensor, nn

from bayesbits.graph.trace import trace
from bayesbits.records.topology import ChannelGroup

IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Between(nn.Module):
    """Two convolutions, and a function between them and a third one."""

    def __init__(self, function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.one(x), self.two(x)))


SEEN = {
    "hand-written ReLU": lambda one, two: one * (one > 0) + two,
    "leaky ReLU by where": lambda one, two: torch.where(one > 0, one, 0.1 * one) + two,
    "straight-through sign": lambda one, two: two + one + (one.sign() - one).detach(),
    "sign times magnitude": lambda one, two: one.sign() * one.abs() + two,
    "mask of floats": lambda one, two: one * (one > 0).float() + two.clamp(max=1),
    "both angles": torch.atan2,
}
LOST = {
    "sign": ("sign", lambda one, two: one.sign() + two),
    "comparison": ("gt", lambda one, two: (one > 0.5).float() + two),
    "cast": ("to_copy", lambda one, two: one.int().float() + two),
    "sign times another": ("sign", lambda one, two: one.sign() * two),
    "sign of another": ("copysign", lambda one, two: torch.copysign(two, one)),
    "scaled and moved sign": ("sign", lambda one, two: (3 * one.sign()).transpose(2, 3).relu() + two),
    "parts of a sign": ("sign", lambda one, two: torch.cat(one.sign().split(2, dim=1), dim=1) + two),
    "mean of a sign": ("sign", lambda one, two: one.sign().mean(dim=(2, 3), keepdim=True) + two),
    "mask of another": ("gt", lambda one, two: torch.where(one > 0, two, 0.0)),
}


def group_of(function) -> ChannelGroup:
    topology = trace(Between(function), IMAGES)
    return topology.group_of(topology.layer("one").out_channels[0])


@pytest.mark.parametrize("name", SEEN)
def test_channels_whose_gate_sees_the_loss_are_removable(name):
    assert group_of(SEEN[name]).reason is None
    assert gradient(SEEN[name]) > 1e-3


@pytest.mark.parametrize("name", LOST)
def test_channels_whose_gate_would_see_nothing_stay(name):
    operation, function = LOST[name]
    assert group_of(function).reason == f"passes {operation}, which takes the factor of a gate in front of it away"


def gradient(function) -> float:
    """The smallest gradient of a gate of the first layer, of one half, with respect to some loss."""
    model = Between(function)
    gate = torch.full((4,), 0.5, requires_grad=True)
    model.function = lambda one, two: function(one * gate.reshape(-1, 1, 1), two)
    (found,) = torch.autograd.grad(model(IMAGES).square().sum(), gate, allow_unused=True, materialize_grads=True)
    return found.abs().min().item()


def test_a_gate_in_front_of_a_sign_has_no_gradient():
    for _, function in LOST.values():
        assert gradient(function) == 0.0


def test_zeros_made_of_a_tensor_are_no_sign():
    """ResNets for small images fill up the channels of a shortcut by x * 0."""
    assert group_of(lambda one, two: torch.cat([one[:, :2], one[:, :2] * 0], dim=1) + two).reason is None


def test_the_channels_beside_a_sign_are_removable():
    topology = trace(Between(lambda one, two: torch.cat([one.sign()[:, :2], two[:, :2]], dim=1)), IMAGES)
    removable = {name for group in topology.removable_groups for name in group.producers}
    assert "two" in removable
    assert topology.group("one").reason is not None
