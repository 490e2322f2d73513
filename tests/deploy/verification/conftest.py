"""A layer whose constants are easy to compute by hand."""

import pytest
import torch
from torch import nn

import bayesbits as bb


@pytest.fixture
def linear() -> bb.Compressor:
    """Two outputs of two inputs: 4-bit weights in [-1, 1], 8-bit inputs in [0, 1]."""
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.5, -1.0], [0.25, 0.75]]))
        layer.bias.copy_(torch.tensor([0.1, -0.3]))
    inputs = torch.tensor([[0.0, 1.0], [0.5, 0.25]])
    compressor = bb.attach(nn.Sequential(layer).eval(), inputs, bb.Spec(bits=(2, 4, 8), prune=False))
    compressor.calibrate([inputs])
    for quantizer in compressor.attachment.quantizers.values():
        quantizer.set_range(1.0)
    compressor.fix(bb.Plan.uniform(compressor.topology, 4, 8))
    return compressor
