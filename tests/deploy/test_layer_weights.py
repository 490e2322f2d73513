"""The final weights: the codes of the simulation, zeros for dropped channels, and nothing of removed ones."""

import pytest
import torch
from torch import nn

import bayesbits as bb
from tests.deploy.networks import deployed


def test_codes_are_those_of_the_simulation():
    compressor, small, _ = deployed("depthwise")
    removed = set(small.integer.structure.removed)
    assert removed
    for layer in compressor.topology.layers:
        module = compressor.model.get_submodule(layer.name)
        codes = module.parts.weight.codes(module.folded_weight())
        codes = codes[[index for index, channel in enumerate(layer.out_channels) if channel not in removed]]
        if not layer.depthwise:
            codes = codes[:, [index for index, channel in enumerate(layer.in_channels) if channel not in removed]]
        assert torch.equal(small.integer.codes(layer.name).int(), codes)


class OwnNorm(nn.BatchNorm2d):
    """A user's own batch norm."""


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, OwnNorm, nn.SyncBatchNorm])
def test_every_class_of_batch_norm_rounds_the_folded_bias(norm):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), norm(6), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Flatten(), nn.Linear(64, 4))
    nn.init.uniform_(model[1].bias)
    inputs = torch.randn(8, 3, 8, 8)
    compressor = bb.attach(model.eval(), inputs[:1])
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan.uniform(compressor.topology, 4, 4))
    with torch.no_grad():
        torch.testing.assert_close(bb.deploy(compressor)(inputs), model(inputs), rtol=1e-5, atol=1e-5)
