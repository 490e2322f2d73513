"""Quantizers stand where they were in training: on operands, inputs of layers, and tensors that max-pools index."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesbits as bb
from tests.deploy.comparison import call


class Unpooling(nn.Module):
    """A max-pool whose indices say where the values of another map go."""

    def __init__(self, functional: bool) -> None:
        super().__init__()
        self.first, self.norm, self.inner = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)
        self.pool, self.last = nn.MaxPool2d(2, return_indices=True), nn.Conv2d(8, 2, 3, padding=1)
        self.relu, self.functional = nn.ReLU(), functional

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x))
        x, indices = self.pool(F.relu(x) if self.functional else self.relu(x))
        return self.last(F.max_unpool2d(F.relu(self.inner(x)), indices, 2))


@pytest.mark.parametrize(("functional", "residual_bits"), [(True, 8), (False, 8), (False, None)])
def test_indices_of_a_max_pool_are_those_of_the_simulation(functional, residual_bits):
    """At 2 bits many sums are equal, and in float their last bits would decide which is the largest."""
    torch.manual_seed(0)
    model, inputs = Unpooling(functional).eval(), torch.randn(4, 3, 16, 16)
    compressor = bb.attach(model, inputs, bb.Spec(bits=(2, 8), input_bits=2, residual_bits=residual_bits))
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan.uniform(compressor.topology, 2, 2, input_bits=2, residual_bits=residual_bits))
    small = bb.deploy(compressor)
    expected, actual = call(model, inputs), call(small, inputs)
    assert (actual - expected).norm() <= 1e-5 * expected.norm()
    assert compressor.topology.pooled_tensors == {"norm.output" if functional else "relu.output"}
    plan = compressor.plan()
    compressor.fix(bb.Plan({name: width for name, width in plan.bits.items() if not name.endswith("output")}))
    assert "indices of a max-pool" in str(bb.deploy(compressor))
