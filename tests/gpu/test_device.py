"""What only a real device shows. Run with the conformance suite: `pytest tests/gpu tests/functional tests/nn`."""

import warnings
from contextlib import contextmanager

import pytest
import torch

from bayesbits.functional import dispatch, gated_quantize, implementation
from bayesbits.nn import GateBank, GatedQuantizer


@contextmanager
def no_host_sync():
    with warnings.catch_warnings(action="ignore"):  # torch calls the mode experimental
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def step(quantizer: GatedQuantizer, bank: GateBank, x: torch.Tensor) -> torch.Tensor:
    bank.draw()
    loss = (quantizer(x) ** 2).sum()
    loss.backward()
    return loss


def learner() -> tuple[GatedQuantizer, GateBank]:
    quantizer = GatedQuantizer(signed=True, beta=2.0).cuda()
    with torch.no_grad():
        quantizer.gates.logits.fill_(0.5)
    return quantizer, GateBank([quantizer.gates], seed=0).cuda()


def test_a_step_makes_no_host_sync():
    quantizer, bank = learner()
    x = torch.randn(1000, device="cuda", requires_grad=True)
    step(quantizer, bank, x)
    with no_host_sync():
        for _ in range(3):
            step(quantizer, bank, x)


@pytest.mark.parametrize("name", ["torch", "triton"])
def test_forward_and_backward_replay_in_a_cuda_graph(name):
    with implementation(name):
        quantizer, bank = learner()
        x = torch.randn(4000, device="cuda", requires_grad=True)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                quantizer.zero_grad(set_to_none=True)
                step(quantizer, bank, x)
        torch.cuda.current_stream().wait_stream(stream)
        quantizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            loss = step(quantizer, bank, x)
        bank.counter[1] = 100
        expected = []
        for _ in range(3):
            graph.replay()
            expected.append((loss.item(), quantizer.log_beta.grad.item()))
        # A leaf of its own: that of the graph belongs to the graph's stream.
        x = x.detach().clone().requires_grad_()
        other, other_bank = learner()
        other_bank.counter[1] = 100
        for value, gradient in expected:
            other.zero_grad(set_to_none=True)
            assert step(other, other_bank, x).item() == pytest.approx(value, rel=1e-5)
            assert other.log_beta.grad.item() == pytest.approx(gradient, rel=1e-4)
        assert len(set(expected)) == 3


def test_compiled_on_the_device_equals_eager_but_for_codes_beside_a_tie():
    (quantizer, bank), (other, other_bank) = learner(), learner()
    x = torch.randn(2**18, device="cuda")
    bank.draw()
    eager = quantizer(x)

    @torch.compile(fullgraph=True)
    def draw_and_quantize(x):
        other_bank.draw()
        return other(x)

    compiled = draw_and_quantize(x)
    eager.sum().backward()
    compiled.sum().backward()
    torch.testing.assert_close(other.log_beta.grad, quantizer.log_beta.grad, rtol=1e-3, atol=0)
    torch.testing.assert_close(other.gates.logits.grad[:2], quantizer.gates.logits.grad[:2], rtol=1e-2, atol=1e-2)
    apart = ((eager - compiled).abs() > 1e-5).float().mean().item()
    assert apart < 1e-3
    assert compiled.abs().max() <= 2


def test_eager_on_the_device_is_triton_and_float64_the_definition():
    assert dispatch.choose(torch.ones(1, device="cuda")).__name__.endswith("triton_launch")
    assert dispatch.choose(torch.ones(1, device="cuda", dtype=torch.float64)).__name__.endswith("reference")


def test_more_elements_than_32_bits_can_count():
    x = torch.zeros(2**31 + 512, device="cuda", dtype=torch.bfloat16)
    x[-1] = 0.7
    x.requires_grad_()
    y = gated_quantize(x, torch.tensor(1.0, device="cuda"), torch.ones(1, device="cuda"), signed=True, bits=(8,))
    assert y[-1].item() == pytest.approx(0.7, abs=0.005)
    y.sum().backward()
    assert x.grad[-1] == 1
