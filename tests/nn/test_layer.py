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
    assert layer.bias_step().item() == pytest.approx(0.1)
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
