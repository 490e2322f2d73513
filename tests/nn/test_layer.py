"""The attached layer: its weight and bias by hand, and what it reads under autocast."""

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.nn import ChannelGate, GatedQuantizer
from bayesbits.nn.class_exchange import restore_class
from bayesbits.nn.layer import LayerParts, attach_layer


@pytest.mark.parametrize("pruned", [False, True])
def test_layers_read_low_precision_that_is_written_once(monkeypatch, pruned):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), torch.randn(8, 6)
    compressor = bb.attach(model, x, bb.Spec(prune=pruned, gates="hard_sigmoid"))
    compressor.calibrate([x])
    with torch.autocast("cpu", torch.bfloat16):
        result = model(x)
    result.sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    original, dtypes = GatedQuantizer.forward, []

    def in_float32(self, x, stretch=None, dtype=None):
        dtypes.append(dtype)
        return original(self, x, stretch)

    monkeypatch.setattr(GatedQuantizer, "forward", in_float32)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(x)
    expected.sum().backward()
    # The input, a weight that gates multiply first, what a layer emits (low already), and the last weight.
    assert dtypes == [torch.bfloat16, None if pruned else torch.bfloat16, None, torch.bfloat16]
    assert torch.equal(result, expected)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-6, atol=1e-6)


def test_without_autocast_nothing_changes():
    model, x = nn.Linear(6, 5), torch.randn(8, 6)
    bb.attach(model, x).calibrate([x])
    assert model(x).dtype == torch.float32


def test_the_weight_is_rounded_as_it_is_folded_and_the_factor_divided_out():
    layer = nn.Linear(1, 3, bias=False)
    norm = nn.BatchNorm1d(3, eps=1.0).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.5], [0.5], [0.3]]))
        norm.running_var.copy_(torch.tensor([0.0, 3.0, 0.0]))
        norm.weight.copy_(torch.tensor([1.0, -1.0, 0.0]))  # factors 1, -1/2 and 0
    quantizer = GatedQuantizer(signed=True, beta=1.5)
    quantizer.fix(2)  # steps of 1: -1, 0, 1
    quantizer.set_range(0.45)  # steps of 0.3
    attach_layer(layer, LayerParts(weight=quantizer, norm=norm))
    assert layer.folded_weight().flatten().tolist() == pytest.approx([0.5, -0.25, 0.0])
    assert layer.folded_codes().flatten().tolist() == [1, -1, 0]
    # 0.3, -0.3 / (-1/2), and 0.3 rounded as if the factor were 1.
    assert layer.effective_weight().flatten().tolist() == pytest.approx([0.3, 0.6, 0.3])
    assert layer.bias_step() is None


def test_gates_and_a_rounded_bias_by_hand():
    layer = nn.Linear(1, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.9], [-0.4]]))
        layer.bias.copy_(torch.tensor([0.16, 0.16]))
    weight, activation = GatedQuantizer(signed=True, beta=1.5), GatedQuantizer(signed=False, beta=1.5)
    weight.fix(2)  # steps of 1
    activation.fix(4)  # steps of 0.1
    gate = ChannelGate(2)
    gate.fix([True, False])
    attach_layer(layer, LayerParts(weight=weight, input=activation, gate=gate, rounds_bias=True))
    assert layer.bias_step().tolist() == pytest.approx([0.1, 0.1])
    assert layer(torch.tensor([[0.52]])).tolist() == [pytest.approx([0.5 * 1.0 + 0.2, 0.0])]
    restore_class(layer)
    assert type(layer) is nn.Linear
    assert layer(torch.tensor([[0.5]])).tolist() == [pytest.approx([0.61, -0.04])]


def test_output_channels_of_transposed_groups():
    layer = nn.ConvTranspose2d(4, 6, 1, groups=2)  # weight [4, 3, 1, 1]
    attach_layer(layer, LayerParts())
    along = layer.along_outputs(torch.arange(6.0))
    assert along.shape == (4, 3, 1, 1)
    assert along.flatten().tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]
    x = torch.randn(2, 4, 3, 3)
    scaled = layer.compute(x, layer.weight * along, None)
    torch.testing.assert_close(scaled, layer.compute(x, layer.weight, None) * torch.arange(6.0).reshape(1, 6, 1, 1))


def integer_layer(layer: nn.Module, **parts) -> nn.Module:
    """A layer whose weights have steps of 1, and whose input has steps of 0.5."""
    weight, activation = GatedQuantizer(signed=True, beta=1.5), GatedQuantizer(signed=False, beta=1.5)
    weight.fix(2)
    activation.fix(2)
    return attach_layer(layer, LayerParts(weight=weight, input=activation, **parts))


def test_the_grid_of_a_channel_is_coarse_enough_for_its_bias():
    layer = nn.Linear(1, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.2], [1.2], [7.0]]))
        layer.bias.copy_(torch.tensor([0.25 * 2**30, -(2.0**31), 2.0**31]))
    integer_layer(layer, rounds_bias=True)
    assert layer.widening().tolist() == [1, 4, 4]
    assert layer.weight_steps().tolist() == [1, 4, 4]
    assert layer.bias_step().tolist() == [0.5, 2, 2]
    assert layer.folded_codes().flatten().tolist() == [1, 0, 1]
    assert layer.effective_weight().flatten().tolist() == [1, 0, 4]
    layer.parts.weight.learn()
    assert layer.widening() is None
    assert layer.effective_weight().flatten().tolist() != [1, 0, 4]


def test_the_bias_that_has_to_fit_is_the_folded_one():
    """Factors of 2 and -1/2: the biases are 3 - 2 (1 - b) and 3 + (1 - b) / 2."""
    norm = nn.BatchNorm1d(2, eps=0.0).eval()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([2.0, -0.5]))
        norm.running_mean.fill_(1.0)
        norm.bias.fill_(3.0)
    layer = nn.Linear(1, 2)
    with torch.no_grad():
        layer.weight.fill_(1.2)
        layer.bias.fill_(2.0**31)
    integer_layer(layer, norm=norm, norm_behind=norm)
    assert layer.deployed_bias().tolist() == pytest.approx([2.0**32, -(2.0**30)])
    assert layer.widening().tolist() == pytest.approx([8, 2])
    assert layer.weight_steps().tolist() == pytest.approx([8, 2])
    assert layer.effective_weight().flatten().tolist() == pytest.approx([0.0, 0.0])  # 2.4 / 8 and -0.6 / 2 round to 0
    tied = nn.Linear(1, 2)
    tied.bias = layer.bias
    integer_layer(tied, norm_behind=norm)  # the factor is in the steps, which are 2 and 1/2 before they are widened
    assert tied.weight_steps().tolist() == pytest.approx([8, 2])
    assert tied.widening().tolist() == pytest.approx([4, 4])


def test_groups_of_a_transposed_convolution_share_one_grid():
    layer = nn.ConvTranspose2d(4, 6, 1, groups=2)
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([0.0, 2.0**31, 0.0, 0.0, 0.0, -(2.0**32)]))
    integer_layer(layer, rounds_bias=True)
    assert layer.widening().tolist() == 8
    whole = nn.ConvTranspose2d(4, 6, 1)
    whole.bias = layer.bias
    integer_layer(whole, rounds_bias=True)
    assert whole.widening().tolist() == [1, 4, 1, 1, 1, 8]
    assert whole.effective_weight().shape == whole.folded_codes().shape == (4, 6, 1, 1)


def test_a_coarser_grid_passes_gradients_and_compiles():
    layer, x = nn.Linear(3, 2), torch.rand(4, 3)
    with torch.no_grad():
        layer.bias[0] = 2.0**31
    integer_layer(layer, rounds_bias=True)
    compiled = torch.compile(layer.effective_weight, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(), layer.effective_weight())
    layer(x).sum().backward()
    assert layer.weight.grad.abs().sum() > 0
    assert layer.bias.grad.tolist() == [4.0, 4.0]
    assert layer.parts.weight.log_beta.grad.isfinite()
