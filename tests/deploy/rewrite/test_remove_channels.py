"""Removing channels from the float graph."""

import torch
import torch.nn.functional as F
from torch import nn

import bayesbits as bb
from tests.deploy.comparison import mixed_plan


class Stacked(nn.Module):
    """Channels of an image without a batch, concatenated along the default dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Conv2d(2, 6, 3), nn.Conv2d(2, 5, 3), nn.Conv2d(11, 4, 3)

    def forward(self, x):
        return self.last(torch.cat([F.relu(self.left(x)), F.relu(self.right(x))]))


def test_channels_concatenated_along_the_default_dimension_are_removed():
    torch.manual_seed(0)
    x = torch.randn(2, 8, 8)
    compressor = bb.attach(Stacked().eval(), x, bb.Spec(bits=(2, 4, 8)))
    compressor.calibrate([x])
    compressor.fix(mixed_plan(compressor.topology, operands=False))
    small = bb.deploy(compressor)
    shapes = {layer.name: layer.weight_shape for layer in small.integer.layers}
    assert shapes["last"][1] == shapes["left"][0] + shapes["right"][0] < 11
    assert torch.allclose(small(x), compressor.model(x), atol=1e-5)
