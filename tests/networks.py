"""Networks that several tests read, each traced once in a run, and plans for them."""

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.graph.trace import trace
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Topology
from bayesbits.zoo.models import CifarResNet, LeNet5, MobileNetV2, resnet18


@cache
def traced_once(make: Callable[[], nn.Module], inputs: Any) -> Topology:
    """The topology of a network."""
    return trace(make(), inputs)


def dropping(topology: Topology, fraction: float, bits: int = 8) -> Plan:
    """A plan in which every layer that makes a removable group drops this fraction of it, from its end."""
    removed = {
        channel
        for group in topology.removable_groups
        for channel in group.channels[group.size - int(group.size * fraction) :]
    }
    return Plan.uniform(topology, bits, bits).without(topology, removed)


def random_plan(topology: Topology, seed: int) -> Plan:
    """A plan with random widths in which every layer drops removable channels at random, but never all of them."""
    choose = random.Random(seed)
    kept = {}
    for layer in topology.layers:
        if layer.depthwise or choose.random() < 0.2:
            continue
        fraction = choose.random()
        stays = [not topology.group_of(channel).removable for channel in layer.out_channels]
        stays = [stay or choose.random() < fraction for stay in stays]
        stays[choose.randrange(len(stays))] = True
        kept[layer.name] = tuple(index for index, stay in enumerate(stays) if stay)
    tensors = Plan.uniform(topology, residual_bits=8).bits
    return Plan({tensor: choose.choice((2, 3, 4, 8, 16, 32)) for tensor in tensors}, kept)


class Inverted(nn.Module):
    """An inverted residual block: its last convolution writes into the stream that it reads through a depthwise one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 3, 3, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(3)
        self.filter = nn.Conv2d(3, 3, 3, padding=1, groups=3)
        self.project = nn.Conv2d(3, 3, 1)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        x = x + self.project(self.filter(x).relu())
        return self.head(x.relu().mean((2, 3)))


ZOO: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lenet5": (LeNet5, (1, 1, 28, 28)),
    "mobilenetv2": (lambda: MobileNetV2(num_classes=10, width=0.25), (1, 3, 32, 32)),
    "cifar_resnet8": (lambda: CifarResNet(8), (1, 3, 32, 32)),
    "resnet18": (resnet18, (1, 3, 224, 224)),
    "mobilenetv2 at 224": (MobileNetV2, (1, 3, 224, 224)),
    "inverted": (Inverted, (1, 3, 8, 8)),
}


@cache
def zoo(name: str) -> Topology:
    """The topology of a network of the zoo, or of the small block above."""
    make, shape = ZOO[name]
    return trace(make(), torch.ones(shape))
