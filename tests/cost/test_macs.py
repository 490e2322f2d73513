"""MACs against counts by hand, for every kind of layer and operation."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from bayesbits.cost.macs import attention_macs, layer_macs, operation_macs, recurrent_macs
from bayesbits.graph.trace import trace


@pytest.mark.parametrize(
    ("layer", "shape", "macs"),
    [
        (nn.Linear(5, 7), (2, 3, 5), 6 * 35),
        (nn.Conv1d(4, 6, 3), (2, 4, 10), 2 * 8 * 6 * 4 * 3),
        (nn.Conv2d(4, 6, 3, stride=2, padding=1), (1, 4, 8, 8), 16 * 6 * 4 * 9),
        (nn.Conv2d(4, 6, (1, 3), padding="same", dilation=2), (1, 4, 8, 8), 64 * 6 * 4 * 3),
        (nn.Conv2d(4, 6, 3, groups=2), (3, 4, 5, 5), 3 * 9 * 6 * 2 * 9),
        (nn.Conv2d(4, 4, 3, groups=4, padding=1, padding_mode="circular"), (1, 4, 5, 5), 25 * 4 * 9),
        (nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 4), 27 * 3 * 2 * 8),
        (nn.ConvTranspose1d(4, 6, 3), (2, 4, 5), 2 * 5 * 4 * 6 * 3),
        (nn.ConvTranspose2d(4, 6, 2, stride=2), (1, 4, 5, 5), 25 * 4 * 6 * 4),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), (1, 4, 5, 5), 25 * 4 * 3 * 9),
        (nn.ConvTranspose3d(2, 3, 2), (1, 2, 3, 3, 3), 27 * 2 * 3 * 8),
    ],
)
def test_layers(layer: nn.Module, shape: tuple[int, ...], macs: int) -> None:
    topology = trace(nn.Sequential(layer), torch.ones(shape))
    assert [found.macs for found in topology.layers] == [macs]
    assert topology.activations[0].network_input


def test_formulas_by_hand() -> None:
    assert layer_macs("conv", (6, 2, 3, 3), (1, 4, 8, 8), (1, 6, 6, 6)) == 36 * 6 * 2 * 9
    assert attention_macs((2, 4, 7, 8), (2, 4, 5, 8), (2, 4, 5, 6)) == 2 * 4 * 7 * 5 * (8 + 6)
    assert recurrent_macs((7, 2, 4), [(12, 4), (12, 3)]) == 14 * (48 + 36)


def test_operations() -> None:
    left, right = torch.ones(2, 3, 4), torch.ones(2, 4, 5)
    assert operation_macs(torch.bmm, (left, right), {}) == 2 * 3 * 4 * 5
    assert operation_macs(torch.einsum, ("bij,bjk->bik", left, right), {}) == 2 * 3 * 4 * 5
    assert operation_macs(torch.softmax, (left,), {"dim": 1}) == 0


class Block(nn.Module):
    """The basic block of ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Identity()
        if stride > 1:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu_()))
        y += self.downsample(x)
        return y.relu_()


def test_resnet18_has_1814_million_macs() -> None:
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [Block(a, b, 1 if a == b else 2) for a, b in pairwise(widths)]
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))
    topology = trace(model, torch.ones(1, 3, 224, 224))
    assert topology.macs == 1_814_073_344
    assert len(topology.layers) == 21
    assert topology.group("0").producers == ("0", "4.conv2", "5.conv2")
    assert sum(group.size for group in topology.removable_groups) == 64 * 3 + 128 * 3 + 256 * 3 + 512 * 3
