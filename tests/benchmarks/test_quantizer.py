"""The contenders of the benchmark of the quantizer compute what they should."""

import torch

from bayesbits.functional import gated_quantize
from benchmarks.quantizer import _checkpointed, _fake_quantizer, _parameters, _step


def test_the_recursion_gives_the_same_numbers():
    x = torch.linspace(-4, 4, 101).requires_grad_()
    beta, gates = _parameters("cpu")
    torch.testing.assert_close(_checkpointed(x, beta, gates), gated_quantize(x, beta, gates, signed=True))


def test_the_fake_quantizer_has_8_bits():
    x = torch.linspace(-4, 4, 1001)
    quantized = _fake_quantizer(x)() / (2.5 / 127)
    torch.testing.assert_close(quantized, quantized.round(), atol=1e-4, rtol=0)
    assert (round(quantized.min().item()), round(quantized.max().item())) == (-127, 127)


def test_a_step_runs_forward_and_backward_and_leaves_no_gradient():
    x, seen = torch.ones(3, requires_grad=True), []
    x.register_hook(lambda gradient: seen.append(gradient.tolist()))
    _step(lambda: 2 * x, x, torch.tensor([1.0, 2.0, 3.0]))()
    assert seen == [[2.0, 4.0, 6.0]]
    assert x.grad is None
