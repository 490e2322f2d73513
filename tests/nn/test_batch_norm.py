"""The attached batch norm: gates multiply scale and shift, and a final folded bias lies on its grid."""

import pytest
import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.nn import ChannelGate
from bayesbits.nn.batch_norm import AttachedBatchNorm, BatchNormParts, attach_batch_norm
from bayesbits.nn.class_exchange import restore_class
from bayesbits.nn.folding import fold_factor, folded_bias


class Own(nn.BatchNorm2d):
    """A class whose forward nobody knows."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return super().forward(input)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("make", [nn.BatchNorm2d, Own])
def test_a_closed_gate_makes_its_channel_zero_and_the_others_stay(make, affine, training):
    torch.manual_seed(0)
    plain, norm = make(3, affine=affine), make(3, affine=affine)
    x = torch.randn(4, 3, 2, 2) + 1.0
    if affine:
        for one in (plain, norm):
            nn.init.constant_(one.bias, 0.5)
    gate = ChannelGate(3)
    gate.fix([True, False, True])
    attach_batch_norm(norm, BatchNormParts(gate=gate))
    expected, actual = plain.train(training)(x), norm.train(training)(x)
    torch.testing.assert_close(actual[:, [0, 2]], expected[:, [0, 2]])
    assert not actual[:, 1].any()
    torch.testing.assert_close(norm.running_mean, plain.running_mean)
    assert norm.num_batches_tracked == plain.num_batches_tracked == int(training)
    restore_class(norm)
    assert type(norm) is make
    assert not hasattr(norm, "parts")


@pytest.mark.parametrize("layer_bias", [True, False])
@pytest.mark.parametrize("make", [nn.BatchNorm2d, Own])
def test_the_folded_bias_is_a_whole_number_of_steps_once_widths_are_final(make, layer_bias):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1, bias=layer_bias), make(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    x = torch.randn(8, 3, 4, 4)
    model.train()(x)
    nn.init.uniform_(model[1].bias, -1.0, 1.0)
    compressor = bb.attach(model.eval(), x)
    compressor.calibrate([x])
    layer, norm = model[0], model[1]
    assert isinstance(norm, AttachedBatchNorm)
    assert norm.effective_shift() is norm.bias  # nothing is final yet
    compressor.fix(bb.Plan.uniform(compressor.topology, 2, 4))
    with torch.no_grad():
        codes = folded_bias(norm, fold_factor(norm), layer.bias, norm.effective_shift()) / layer.bias_step()
        assert (norm.effective_shift() - norm.bias).abs().max() > 1e-3  # two bits are coarse
        torch.testing.assert_close(codes, codes.round(), rtol=0, atol=1e-3)
        shifted = nn.functional.batch_norm(
            layer(x), norm.running_mean, norm.running_var, norm.weight, norm.effective_shift()
        )
        torch.testing.assert_close(norm(layer(x)), shifted)
    norm.train()
    assert norm.effective_shift() is norm.bias  # statistics that still move are not folded
