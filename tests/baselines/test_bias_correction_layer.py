"""The bias that is corrected for a layer: which parameter it is, and its mean."""

import copy

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.baselines.bias_correction_layer import LayerBias

X = torch.randn(8, 2, 3, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def fixed() -> bb.Compressor:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 1, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Conv2d(3, 2, 1)
    ).eval()
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([1.0, -2.0, 3.0]))
        model[1].running_var.fill_(4.0)
    compressor = bb.attach(model, X, bb.Spec(residual_bits=None))
    compressor.calibrate([X])
    plan = bb.Plan.uniform(compressor.topology, 4, 8)
    compressor.fix(bb.Plan(plan.bits, {"3": (0, 2)}))
    return compressor


@pytest.fixture
def compressor(fixed) -> bb.Compressor:
    return bb.Compressor(copy.deepcopy(fixed.model))


def bias_of(compressor: bb.Compressor, name: str) -> LayerBias:
    return LayerBias(compressor, compressor.topology.layer(name), compressor.model.get_submodule(name))


def test_a_layer_without_a_bias_uses_the_shift_of_its_batch_norm(compressor):
    own, norm = bias_of(compressor, "3"), bias_of(compressor, "0")
    assert (own.name, norm.name) == ("3.bias", "1.bias")
    assert own.parameter is compressor.model[3].bias
    assert norm.parameter is compressor.model[1].bias
    shift = torch.ones(3).double()
    assert own.after_norm(shift) is shift
    # gamma / sqrt(4 + eps)
    torch.testing.assert_close(norm.after_norm(shift), torch.tensor([0.5, -1.0, 1.5]).double(), rtol=1e-5, atol=0)


def test_a_mean_is_taken_by_channel_over_all_outputs(compressor):
    mean = bias_of(compressor, "3").mean()
    with pytest.raises(ValueError, match="no values reached 3 on these batches"):
        mean.value()
    first, second = torch.ones(1, 3, 2, 2), torch.zeros(2, 3, 2, 1)
    second[:, 1] = 4.0
    for output in (first, second):
        mean.add(X, output)
    assert mean.value().tolist() == pytest.approx([4 / 8, (4 + 16) / 8, 4 / 8])
    mean.add(X, first * torch.inf)
    with pytest.raises(ValueError, match="the output of 3 on these batches has a mean that is not finite"):
        mean.value()


def test_only_channels_that_the_plan_keeps_are_shifted(compressor):
    bias = bias_of(compressor, "3")
    before = bias.parameter.detach().clone()
    size = bias.subtract(torch.tensor([3.0, 100.0, 4.0]).double())
    torch.testing.assert_close(before - bias.parameter.detach(), torch.tensor([3.0, 0.0, 4.0]))
    assert size == pytest.approx((25 / 3) ** 0.5)


@pytest.mark.parametrize("name", ["0", "3"])
def test_a_rounded_bias_is_on_the_grid_and_changes_no_output(compressor, name):
    bias = bias_of(compressor, name)
    with torch.no_grad():
        bias.parameter.copy_(torch.tensor([0.123, 0.456, -0.789]))
        before = compressor.model(X)
        bias.round_parameter()
        assert not torch.equal(bias.parameter, torch.tensor([0.123, 0.456, -0.789]))
        torch.testing.assert_close(compressor.model(X), before)
    if name == "3":
        step = compressor.model[3].bias_step()
        codes = bias.parameter.detach() / step
        torch.testing.assert_close(codes, codes.round(), rtol=0, atol=1e-3)
