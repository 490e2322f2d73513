"""Random networks of many kinds of operations: channels that `trace` calls removable are removable."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesbits.graph.trace import trace
from tests.graph.networks import IMAGES, randomize
from tests.graph.removal import difference

ALONE = (
    F.relu, torch.sigmoid, F.gelu, torch.tanh, F.softplus, torch.abs, torch.exp,
    lambda x: x * 0.5, lambda x: x + 0.5, lambda x: x.flip(1), lambda x: x.roll(1, 1), lambda x: x.softmax(1),
    lambda x: torch.cat((x[:, 2:], x[:, :2]), 1), lambda x: x.transpose(2, 3),
    lambda x: F.pad(x[:, 1:], (0, 0, 0, 0, 1, 0)),
    lambda x: F.avg_pool2d(x, 3, 1, 1), lambda x: F.max_pool2d(x, 3, 1, 1), lambda x: x - x.mean((2, 3), keepdim=True),
    lambda x: x - x.mean(1, keepdim=True),
    lambda x: x.reshape(2, 2, 3, 8, 8).transpose(1, 2).contiguous().view(2, 6, 8, 8),
    lambda x: x.clone().relu_(), lambda x: torch.where(x > 0, x, 0.1 * x), lambda x: F.instance_norm(x),
    lambda x: x * torch.linspace(0.5, 1, 6)[:, None, None],
    lambda x: x.reshape(2, 6, 64).mT.reshape(2, 64, 6).mT.view_as(x),
)  # fmt: skip
TOGETHER = (
    torch.add, torch.sub, torch.mul, torch.maximum, lambda x, y: x * torch.sigmoid(y), lambda x, y: x / (1 + y.abs()),
    lambda x, y: torch.cat((x[:, :3], y[:, 3:]), 1), lambda x, y: x * y.mean((2, 3), keepdim=True),
    lambda x, y: torch.lerp(x, y, 0.3), lambda x, y: x.masked_fill(y > 0, 0.0), lambda x, y: torch.stack((x, y)).sum(0),
)  # fmt: skip


class Random(nn.Module):
    """Layers and operations in a random order, each on some of the last three tensors."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        choose = random.Random(seed)
        self.first = nn.Conv2d(3, 6, 1)
        self.layers = nn.ModuleList()
        self.norms = nn.ModuleList()
        self.steps = []
        for count in range(1, 13):
            kind = choose.choice(("alone", "together", "layer", "layer"))
            options = {"alone": len(ALONE), "together": len(TOGETHER), "layer": len(self.layers) + 1}
            left, right = (count - 1 - choose.randrange(min(count, 3)) for _ in range(2))
            self.steps.append((kind, choose.randrange(options[kind]), left, right))
            if kind == "layer" and self.steps[-1][1] == len(self.layers):
                groups = choose.choice((1, 1, 1, 6, 2))
                self.layers.append(nn.Conv2d(6, 6, 3, padding=1, groups=groups))
                self.norms.append(choose.choice((nn.Identity, nn.BatchNorm2d))(*[6]))
        self.last = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        tensors = [self.first(x)]
        for kind, index, left, right in self.steps:
            if kind == "alone":
                tensors.append(ALONE[index](tensors[left]))
            elif kind == "together":
                tensors.append(TOGETHER[index](tensors[left], tensors[right]))
            else:
                tensors.append(self.norms[index](self.layers[index](tensors[left])))
        return self.last(tensors[-1] + tensors[-2])


@pytest.mark.parametrize("seed", [*range(11), 1078])  # 1078: constant zeros in a padded channel, to which 0.5 is added
def test_what_is_called_removable_is_removable(seed: int) -> None:
    model = randomize(Random(seed)).double()
    topology = trace(model, IMAGES.double())
    assert topology.traced
    for group in topology.removable_groups:
        assert difference(model, IMAGES.double(), topology, group, silent=True) < 1e-9, group
