"""The attached layer: its weight and bias by hand, and what it reads under autocast."""

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.nn import GatedQuantizer


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
