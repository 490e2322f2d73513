"""The operation itself: its bandwidth against a device copy, and its time and memory against the alternatives."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bayesbits.functional import gated_quantize, recursive_gated_quantize
from benchmarks.measure import peak_bytes, seconds

Row = dict[str, Any]


def bandwidth(smoke: bool) -> list[Row]:
    """The eager kernel on the GPU: bytes that must move, over time, as a part of what a device copy moves."""
    if not torch.cuda.is_available():
        return []
    sizes = (2**12,) if smoke else (2**24, 2**26, 2**28)
    return [_bandwidth(dtype, size) for dtype in (torch.float32, torch.bfloat16) for size in sizes]


def _bandwidth(dtype: torch.dtype, elements: int) -> Row:
    x, gradient = (torch.randn(elements, device="cuda").to(dtype) for _ in range(2))
    target = torch.empty_like(x)
    beta, gates = _parameters("cuda")
    y = gated_quantize(x.requires_grad_(), beta, gates, signed=True)
    copy = seconds(lambda: target.copy_(x.detach()), "cuda", 30)
    forward = seconds(lambda: gated_quantize(x, beta, gates, signed=True), "cuda", 30)
    backward = seconds(lambda: torch.autograd.grad(y, (x, beta, gates), gradient, retain_graph=True), "cuda", 30)
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "elements": f"2^{elements.bit_length() - 1}",
        "copy GB/s": round(2 * x.nbytes / copy / 1e9),
        "forward / copy": round(copy / forward, 3),
        "backward / copy": round(1.5 * copy / backward, 3),
    }


def against_peers(smoke: bool) -> list[Row]:
    """Forward and backward together, against the paper's recursion and against an ordinary learnable fake-quantizer."""
    devices = ("cuda", "cpu") if torch.cuda.is_available() else ("cpu",)
    return [row for device in devices for row in _against_peers(device, smoke)]


def _against_peers(device: str, smoke: bool) -> list[Row]:
    elements = 2**12 if smoke else 2**26 if device == "cuda" else 2**23
    x = torch.randn(elements, device=device).requires_grad_()
    gradient = torch.randn(elements, device=device)
    beta, gates = _parameters(device)
    contenders = {
        "gated_quantize": _step(lambda: gated_quantize(x, beta, gates, signed=True), x, gradient),
        "recursion": _step(lambda: recursive_gated_quantize(x, beta, gates, signed=True), x, gradient),
        "recursion, checkpointed": _step(lambda: _checkpointed(x, beta, gates), x, gradient),
        "fake-quantizer": _step(_fake_quantizer(x), x, gradient),
    }
    repeats = 3 if smoke else 20 if device == "cuda" else 5
    times = {name: seconds(step, device, repeats) for name, step in contenders.items()}
    memory = {name: peak_bytes(step, device) for name, step in contenders.items()}
    return [
        {
            "device": device,
            "elements": f"2^{elements.bit_length() - 1}",
            "what": name,
            "ms": round(times[name] * 1e3, 3),
            "time / ours": round(times[name] / times["gated_quantize"], 2),
            "memory, copies of x": round(memory[name] / x.nbytes, 2),
        }
        for name in contenders
    ]


def _parameters(device: str) -> tuple[Tensor, Tensor]:
    # A range as learning leaves it. Round numbers are special: at 2.5, any 0.5 of a bfloat16 tensor is a tie of 8 bits,
    # and the kernel takes its slow way.
    beta = torch.tensor(math.e, device=device).requires_grad_()
    return beta, torch.tensor([1.0, 0.9, 0.8, 0.7, 0.6], device=device).requires_grad_()


def _step(forward: Callable[[], Tensor], x: Tensor, gradient: Tensor) -> Callable[[], None]:
    def step() -> None:
        x.grad = None
        forward().backward(gradient)
        x.grad = None

    return step


def _checkpointed(x: Tensor, beta: Tensor, gates: Tensor) -> Tensor:
    result: Tensor = checkpoint(
        lambda: recursive_gated_quantize(x, beta, gates, signed=True), use_reentrant=False, preserve_rng_state=False
    )
    return result


def _fake_quantizer(x: Tensor) -> Callable[[], Tensor]:
    """torch's own: 8 bits, learned scale and zero point; the operation of LSQ-style quantization-aware training."""
    scale = torch.tensor([2.5 / 127], device=x.device).requires_grad_()
    zero_point = torch.zeros(1, device=x.device).requires_grad_()
    return lambda: torch._fake_quantize_learnable_per_tensor_affine(x, scale, zero_point, -127, 127, 1.0)
