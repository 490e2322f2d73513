"""Operations that compilers do not look into: the kernels, and copies of values that must not be computed again.

On a GPU a compiler that sees the definition's plain operations fuses them with their neighbors, but then needs a pass
over memory for every gradient of a gate; the kernel has all of them from one. So `torch.compile` compiles the network
around the quantizers, and each quantizer stays one kernel.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bayesbits.functional.dispatch import choose, run_backward, run_forward


@torch.library.custom_op("bayesbits::gated_quantize", mutates_args=())
def quantize(
    x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: Sequence[int], dtype: torch.dtype
) -> Tensor:  # fmt: skip
    """`gated_quantize` of checked arguments."""
    return run_forward(x, beta, gates, signed, tuple(bits), choose(x, beta.numel()), dtype)


@torch.library.custom_op("bayesbits::gated_quantize_backward", mutates_args=())
def gradients(
    grad: Tensor, x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, beta and the gates."""
    dx, dbeta, dgates, _ = run_backward(grad, x, beta, gates, signed, tuple(bits), True, choose(x, beta.numel()))
    assert dbeta is not None
    assert dgates is not None
    return dx, dbeta, dgates


@quantize.register_fake
def _(x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty_like(x, dtype=dtype)


@gradients.register_fake
def _(
    grad: Tensor, x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(beta), torch.empty_like(gates)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, beta, gates, ctx.signed, ctx.bits, _ = inputs
    ctx.save_for_backward(x, beta, gates)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *gradients(grad, *ctx.saved_tensors, ctx.signed, ctx.bits), None, None, None


quantize.register_autograd(_backward, setup_context=_remember)


@torch.library.custom_op("bayesbits::gated_quantize_asymmetric", mutates_args=())
def quantize_asymmetric(
    x: Tensor, alpha: Tensor, beta: Tensor, gates: Tensor, bits: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """`gated_quantize` of checked arguments, for an asymmetric range."""
    return run_forward(x, beta, gates, True, tuple(bits), choose(x), dtype, alpha)


@torch.library.custom_op("bayesbits::gated_quantize_asymmetric_backward", mutates_args=())
def gradients_asymmetric(
    grad: Tensor, x: Tensor, alpha: Tensor, beta: Tensor, gates: Tensor, bits: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, alpha, beta and the gates."""
    dx, dbeta, dgates, dalpha = run_backward(grad, x, beta, gates, True, tuple(bits), True, choose(x), alpha)
    assert dbeta is not None
    assert dgates is not None
    assert dalpha is not None
    return dx, dalpha, dbeta, dgates


@quantize_asymmetric.register_fake
def _(x: Tensor, alpha: Tensor, beta: Tensor, gates: Tensor, bits: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty_like(x, dtype=dtype)


@gradients_asymmetric.register_fake
def _(
    grad: Tensor, x: Tensor, alpha: Tensor, beta: Tensor, gates: Tensor, bits: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(alpha), torch.empty_like(beta), torch.empty_like(gates)


def _remember_asymmetric(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.bits, _ = inputs
    ctx.save_for_backward(*tensors)


def _backward_asymmetric(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *gradients_asymmetric(grad, *ctx.saved_tensors, ctx.bits), None, None


quantize_asymmetric.register_autograd(_backward_asymmetric, setup_context=_remember_asymmetric)


def quantize_again(quantizing: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """One of the operations above for activations in a compiled network: computed again in the backward pass.

    There the layer behind needs the result, and the quantizer needs x: a float network keeps only one of them.
    """
    result: Tensor = checkpoint(quantizing, *arguments, use_reentrant=False, preserve_rng_state=False)
    return result


@torch.library.custom_op("bayesbits::copy", mutates_args=())
def _copy(values: Tensor) -> Tensor:
    return values.clone()


@_copy.register_fake
def _(values: Tensor) -> Tensor:
    return torch.empty_like(values)


_copy.register_autograd(lambda ctx, grad: grad)


def snapshot(buffer: Tensor) -> Tensor:
    """The values of a buffer that the same forward pass changes.

    A compiler may keep the buffer itself for the backward pass and compute from it again, when it has changed. It keeps
    the result of an operation that it does not look into.
    """
    return _hidden(buffer)


def compute_once(values: Tensor) -> Tensor:
    """A small tensor that many large ones are multiplied with.

    A compiler would compute it again for every element of these, and a gate's value takes two logarithms and an
    exponential.
    """
    return _hidden(values)


def _hidden(values: Tensor) -> Tensor:
    """In a compiled network the result of an operation that the compiler does not look into."""
    if not torch.compiler.is_dynamo_compiling():
        return values
    copied: Tensor = _copy(values)
    return copied
