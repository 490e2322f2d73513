"""The final form of a network: plain grids, weights that lie on them, and the scales of batch norms."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

import bayesbits as bb
from bayesbits.compression.final_form import make_final
from bayesbits.methods import METHODS
from bayesbits.nn.final_quantizer import FinalQuantizer
from tests.methods.quantizers import IMAGES, network
from tests.nn import pre_activation


def fixed(method="tqt", model=None):
    compressor = bb.attach(model or network(), IMAGES[:1], bb.Spec(method=method, weight_bits=4, activation_bits=4))
    compressor.calibrate([IMAGES])
    compressor.fix()
    compressor.model.eval()
    return compressor


def test_the_network_computes_the_same_with_final_quantizers_and_weights_on_the_grid():
    compressor = fixed()
    before = compressor.model(IMAGES)
    make_final(compressor.model, compressor.attachment)
    torch.testing.assert_close(compressor.model(IMAGES), before)
    quantizers = compressor.attachment.quantizers
    assert all(isinstance(quantizers[f"{layer}.weight"], FinalQuantizer) for layer in (0, 3, 7, 9))
    assert compressor.model[3].parts.weight is quantizers["3.weight"]
    assert compressor.model[3].parts.input is quantizers["3.input"]
    step = quantizers["3.weight"].step()
    codes = compressor.model[3].weight / step
    torch.testing.assert_close(codes, codes.round())
    assert torch.log2(step).item() == round(torch.log2(step).item())  # the step is exactly a power of two


def test_our_own_quantizers_stay():
    compressor = bb.attach(network(), IMAGES[:1])
    compressor.calibrate([IMAGES])
    compressor.fix()
    before = dict(compressor.attachment.quantizers)
    make_final(compressor.model, compressor.attachment)
    assert dict(compressor.attachment.quantizers) == before


class OwnProduct(nn.Module):
    """A product with a view of a parameter."""

    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.randn(64, 4, generator=torch.Generator().manual_seed(3)))

    def forward(self, x):
        return F.linear(x.flatten(1), self.v.t())


def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), parametrizations.weight_norm(nn.Linear(64, 4)))


@pytest.mark.parametrize("made", [normed, OwnProduct])
@pytest.mark.parametrize("method", ["lsq", "tqt", "qt", "rq", "wage", "dq", "fracbits", "learned_width"])
def test_a_weight_that_is_computed_is_deployed_where_its_codes_are_the_nearest(method, made):
    widths = {} if METHODS[method].widths is None else {"weight_bits": 4, "activation_bits": 4}
    compressor = bb.attach(made(), IMAGES[:1], bb.Spec(method=method, **widths))
    compressor.calibrate([IMAGES])
    compressor.fix()
    with torch.no_grad():
        for parameter in compressor.model.parameters():  # as the last step of training does, after which nothing runs
            parameter.mul_(1.1)
    small = bb.deploy(compressor)
    before = compressor.model.eval()(IMAGES)
    assert before.abs().max() > 0.1
    torch.testing.assert_close(small(IMAGES), before)


@pytest.mark.parametrize("method", ["twn", "lrnet"])
def test_a_weight_that_is_computed_is_refused_where_the_grid_does_not_find_its_codes(method):
    reason = r"1\.weight.*is computed from other parameters.* a rule that gives it another"
    with pytest.warns(UserWarning, match="cannot be deployed with " + reason) as warned:  # before any training
        compressor = bb.attach(normed(), IMAGES[:1], bb.Spec(method=method))
    assert warned[0].filename == __file__
    compressor.calibrate([IMAGES])
    compressor.fix()
    with pytest.raises(ValueError, match=reason):
        bb.deploy(compressor)
    compressor = bb.attach(normed(), IMAGES[:1], bb.Spec(method=method, rules={"1.weight": bb.Rule(8)}))
    compressor.calibrate([IMAGES])
    compressor.fix()
    torch.testing.assert_close(bb.deploy(compressor)(IMAGES), compressor.model.eval()(IMAGES))


def test_attaching_warns_of_weights_without_codes_and_of_no_others():
    with pytest.warns(UserWarning, match=r"cannot be deployed with 0\.weight, .* and 1 more: .*DoReFa"):
        bb.attach(network(), IMAGES[:1], bb.Spec(method="pact", weight_bits=4, activation_bits=4))
    with warnings.catch_warnings(action="error"):
        model, widths = network(), {"weight_bits": 4, "activation_bits": 4}
        with pytest.raises(UserWarning, match="cannot be deployed"):
            bb.attach(model, IMAGES[:1], bb.Spec(method="pact", **widths))
        bb.attach(model, IMAGES[:1], bb.Spec(method="lsq", **widths))  # it was left as it was
        bb.attach(network(), IMAGES[:1], bb.Spec(method="lrnet"))
        bb.attach(normed(), IMAGES[:1], bb.Spec(method="lsq", weight_bits=4, activation_bits=4))


@torch.no_grad()
def test_the_scale_of_a_batch_norm_is_written_with_its_steady_channels_at_zero():
    compressor = pre_activation.fixed(pre_activation.PreActivation())
    model = compressor.model
    before = model(pre_activation.IMAGES)
    make_final(model, compressor.attachment)
    assert model.norm1.weight[pre_activation.DEAD] == model.norm2.weight[pre_activation.DEAD] == 0.0
    assert torch.equal(model(pre_activation.IMAGES), before)
