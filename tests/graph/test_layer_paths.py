"""What lies between layers: which functions pass a factor on, which follow a layer, the path from one to the next."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesbits.graph.exported_program import operation
from bayesbits.graph.layer_paths import read_layer_paths
from bayesbits.graph.pointwise import apply_functions


class Pair(nn.Module):
    """Two layers with a function between them."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.function = nn.Conv2d(2, 4, 1), nn.Conv2d(4, 2, 1), function

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.function(self.first(x)))


IMAGES = torch.randn(2, 2, 4, 4)

PASS: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda x: x,
    "relu": F.relu,
    "leaky relu": F.leaky_relu,
    "clamp below zero": lambda x: x.clamp(min=0),
    "max pooling": lambda x: F.max_pool2d(x, 2),
    "average pooling": lambda x: F.avg_pool2d(x, 2),
    "a constant factor": lambda x: 3 * x,
    "absolute value": torch.abs,
    "dropout": lambda x: F.dropout(x, training=False),
    "added to itself": lambda x: x + F.relu(x),
    "padding with zeros": lambda x: F.pad(x, (1, 1)),
}
STOP: dict[str, Callable[[Tensor], Tensor]] = {
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "clamp": lambda x: x.clamp(0, 1e3),
    "gelu": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "hardswish": F.hardswish,
    "softplus": F.softplus,
    "elu": F.elu,
    "add": lambda x: x + 1,
    "mul": lambda x: x * x,
    "softmax": lambda x: x.softmax(1),
    "instance_norm": F.instance_norm,
    "passes instance_norm": nn.InstanceNorm2d(4, affine=True),
    "a constant": lambda x: F.pad(x, (1, 1), value=1.0),
}


@pytest.mark.parametrize("name", PASS)
def test_what_passes_a_factor_on(name):
    channels = read_layer_paths(Pair(PASS[name]), IMAGES).scalable_channels()
    (group,) = [group for group in channels.groups if group.producers == ("first",)]
    assert group.reason is None
    assert group.consumers == ("second",)


@pytest.mark.parametrize("name", STOP)
def test_what_does_not(name):
    channels = read_layer_paths(Pair(STOP[name]), IMAGES).scalable_channels()
    (group,) = [group for group in channels.groups if group.producers == ("first",)]
    assert group.reason is not None
    assert name in group.reason


def test_the_functions_after_a_layer_compute_what_the_network_does():
    network = nn.Sequential(
        nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.Hardtanh(-0.5, 0.3), nn.GELU(), nn.Conv2d(4, 2, 1)
    )
    network.eval()
    paths = read_layer_paths(network, IMAGES)
    functions = paths.functions_after("0")
    assert [operation(node) for node in functions] == ["hardtanh", "gelu"]
    assert paths.functions_after("4") == ()
    x = torch.randn(3, 4, 2, 2)
    torch.testing.assert_close(apply_functions(functions, x), network[3](network[2](x)))


def test_a_branch_ends_the_functions_after_a_layer():
    assert read_layer_paths(Pair(lambda x: x * torch.sigmoid(x)), IMAGES).functions_after("first") == ()
    assert read_layer_paths(Pair(lambda x: x * x), IMAGES).functions_after("first") == ()


def test_the_path_to_a_layer():
    network = nn.Sequential(
        nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    paths = read_layer_paths(network.eval(), IMAGES)
    path = paths.path_to("5")
    assert path is not None
    assert path.producer == "0"
    assert operation(path.operations[0]) == "relu"
    assert paths.path_to("0") is None
    assert read_layer_paths(Pair(lambda x: x + F.relu(x)), IMAGES).path_to("second") is None
