"""Channels removed from the graph: the result is that of the network whose channels are masked."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesbits as bb
from tests.deploy.comparison import call, check_equal, mixed_plan
from tests.deploy.networks import compress, make
from tests.graph.networks import randomize


@pytest.mark.parametrize("name", ["residual", "depthwise", "concatenation", "shuffled", "padded shortcut", "vit"])
def test_pruned_and_masked_are_the_same_in_float(name):
    model, inputs = make(name)
    compressor = bb.attach(model.eval(), inputs, bb.Spec(bits=(32,), input_bits=32, residual_bits=None))
    compressor.calibrate([inputs])
    kept = mixed_plan(compressor.topology).kept
    compressor.fix(bb.Plan(bb.Plan.uniform(compressor.topology, 32, 32, 32).bits, kept))
    small = bb.deploy(compressor)
    assert small.integer.structure.removed
    assert small.parameter_count == compressor.cost().parameters
    expected, actual = call(compressor.model, inputs), call(small, inputs)
    assert ((actual - expected).norm() / expected.norm()).item() < 1e-5


class FixedView(nn.Module):
    """Sizes written down as numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 6, 1)
        self.head = nn.Linear(6 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x)).view(-1, 8, 64).reshape(-1, 8, 8, 8)
        return self.head(F.max_pool2d(self.second(x), 2).view(-1, 96))


def test_sizes_in_the_users_code_are_corrected():
    model, inputs = randomize(FixedView()), torch.randn(3, 3, 8, 8)
    compressor = compress(model, inputs)
    small = bb.deploy(compressor)
    assert small.parameter_count == compressor.cost().parameters < sum(p.numel() for p in model.parameters())
    check_equal(compressor, small, inputs)
