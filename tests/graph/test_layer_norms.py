"""Norms that belong to one layer, and those that are nobody's own."""

import pytest
import torch
from torch import Tensor, nn

from bayesbits.graph.channels import TAKES_FACTORS
from bayesbits.graph.trace import trace
from bayesbits.records.topology import Topology
from tests.graph.networks import IMAGES


def test_a_batch_norm_that_is_not_alone_is_nobodys_own() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return self.last(x + self.norm(x))

    topology = trace(Both(), IMAGES)
    assert topology.layer("first").norm is None
    assert topology.group("first").reason == "passes batch norm norm, which is not one layer's own"


class Shared(nn.Module):
    """A convolution that is called twice, with a norm behind the first call and that or another behind the second."""

    def __init__(self, norm: nn.Module, other: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.norm, self.other, self.last = nn.Conv2d(3, 4, 1), norm, other, nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        two = self.other or self.norm
        return self.last(self.norm(self.first(x)).relu() + two(self.first(x + 1)).relu())


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.InstanceNorm2d(4, affine=True)])
def test_a_norm_that_follows_every_call_of_a_shared_layer_is_its_own(norm) -> None:
    topology = trace(Shared(norm), IMAGES)
    layer = topology.layer("first")
    assert (layer.norm or layer.instance_norm, layer.calls) == ("norm", 2)
    assert topology.group("first").removable


@pytest.mark.parametrize("other", [nn.BatchNorm2d(4), nn.Identity()], ids=["another norm", "no norm"])
def test_a_norm_of_one_call_of_a_shared_layer_is_nobodys_own(other) -> None:
    topology = trace(Shared(nn.BatchNorm2d(4), other), IMAGES)
    assert topology.layer("first").norm is None
    assert not topology.group("first").removable


def test_a_norm_that_also_reads_something_else_is_nobodys_own() -> None:
    class Again(Shared):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.last(self.norm(x.repeat(1, 2, 1, 1)[:, :4]))

    assert trace(Again(nn.BatchNorm2d(4)), IMAGES).layer("first").norm is None


class Normed(nn.Module):
    """A convolution and an instance norm, which `join` makes something of."""

    def __init__(self, join, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 4, 1), norm or nn.InstanceNorm2d(4), nn.Conv2d(4, 2, 1)
        self.join = join

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.join(self, self.first(x)))


class Renamed(nn.InstanceNorm2d):
    """A class whose code nobody knows."""


@pytest.mark.parametrize("norm", [nn.InstanceNorm2d(4), nn.InstanceNorm2d(4, affine=True, track_running_stats=True)])
def test_an_instance_norm_that_alone_reads_a_layer_is_its_own(norm) -> None:
    topology = trace(Normed(lambda model, x: model.norm(x).relu(), norm), IMAGES)
    layer = topology.layer("first")
    assert (layer.instance_norm, layer.norm) == ("norm", None)
    assert topology.layer("last").instance_norm is None
    assert topology.group("first").removable
    assert Topology.from_json(topology.to_json()) == topology
    assert topology.other_parameters == sum(parameter.numel() for parameter in norm.parameters())


@pytest.mark.parametrize(
    ("join", "norm"),
    [
        (lambda model, x: model.norm(x) + x, None),
        (lambda model, x: model.norm(x.relu()), None),
        (lambda model, x: model.norm(model.norm(x)), None),
        (lambda model, x: nn.functional.instance_norm(x), None),
        (lambda model, x: model.norm(x), Renamed(4)),
    ],
    ids=["two readers", "behind a function", "called twice", "a function", "another class"],
)
def test_other_instance_norms_keep_channels(join, norm) -> None:
    topology = trace(Normed(join, norm), IMAGES)
    assert topology.layer("first").instance_norm is None
    assert topology.group("first").reason == TAKES_FACTORS


def test_instance_norms_with_one_weight_are_nobodys_own() -> None:
    norms = [nn.InstanceNorm2d(4, affine=True) for _ in range(2)]
    norms[1].weight = norms[0].weight
    model = nn.Sequential(nn.Conv2d(3, 4, 1), norms[0], nn.Conv2d(4, 4, 1), norms[1], nn.Conv2d(4, 2, 1))
    assert [layer.instance_norm for layer in trace(model, IMAGES).layers] == [None, None, None]


def test_instance_norms_over_other_dimensions_are_nobodys_own() -> None:
    linear = nn.Sequential(nn.Linear(8, 8), nn.InstanceNorm1d(3), nn.Linear(8, 2))
    alone = nn.Sequential(nn.Conv2d(3, 4, 1), nn.InstanceNorm1d(8), nn.Conv2d(4, 2, 1))
    assert trace(linear, torch.ones(2, 3, 8)).layer("0").instance_norm is None
    assert trace(alone, IMAGES[0]).layer("0").instance_norm is None


def test_batch_norm_over_positions_is_not_the_linear_layers_own() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(3), nn.Linear(8, 2))
    assert trace(model, torch.ones(2, 3, 8)).layer("0").norm is None
    flat = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    assert trace(flat, torch.ones(2, 8)).layer("0").norm == "1"
