"""`gated_quantize`: checks of its arguments, its three forms for autograd, exporters and compilers, and their choice.

The mathematics is in `functional.reference`; `functional.dispatch` chooses the implementation that computes it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bayesbits.functional import custom_ops, grid, reference
from bayesbits.functional.dispatch import choose, forced, has_kernel, run_backward, run_forward


def _as_one_operation(x: Tensor, rows: int) -> bool:
    """Whether the kernel is one operation, into which the compiler does not look: that of `torch.compile` for the GPU.

    `torch.compiler.is_exporting` must not be asked: on torch 2.11 it is a constant True inside dynamo.
    """
    if torch.compiler.is_compiling():
        return torch.compiler.is_dynamo_compiling() and has_kernel(x, rows)
    return forced() == "opaque" and x.numel() > 0


def _as_plain_operations(x: Tensor) -> bool:
    """Whether the definition runs as plain operations: for exporters and other compilers, and for empty tensors."""
    if torch.compiler.is_compiling() or type(x) not in (Tensor, torch.nn.Parameter) or x.numel() == 0:
        return True
    return forced() == "traced"


class _GatedQuantize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], alpha: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(x, beta, gates, alpha)
        ctx.signed, ctx.bits = signed, bits
        # Detached: a compiler looks into the history of what it is given.
        x, beta, gates = x.detach(), beta.detach(), gates.detach()
        alpha = None if alpha is None else alpha.detach()
        ctx.implementation = choose(x, beta.numel())  # remembered, as backward may run in another thread
        return run_forward(x, beta, gates, signed, bits, ctx.implementation, alpha=alpha)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, beta, gates, alpha = ctx.saved_tensors
        x, beta, gates, alpha = x.detach(), beta.detach(), gates.detach(), None if alpha is None else alpha.detach()
        sums_needed = any(ctx.needs_input_grad[index] for index in (1, 2, 5))
        options = (ctx.signed, ctx.bits, sums_needed, ctx.implementation, alpha)
        dx, dbeta, dgates, dalpha = run_backward(grad, x, beta, gates, *options)
        return dx, dbeta, dgates, None, None, dalpha


def _broadcast(beta: Tensor, x: Tensor) -> Tensor:
    """beta in a shape that broadcasts against x: a scalar, or one range for each index of axis 0."""
    return beta.reshape(-1, *[1] * (x.dim() - 1)) if beta.numel() > 1 else beta.reshape(())


def gated_quantize(
    x: Tensor,
    beta: Tensor | float,
    gates: Tensor | Sequence[Tensor | float],
    *,
    signed: bool,
    bits: Sequence[int] = (2, 4, 8, 16, 32),
    alpha: Tensor | float | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Quantize x by a gated mixture of widths: z_2 (x_2 + z_4 (eps_4 + z_8 (eps_8 + ...))).

    Gates of 0 and 1 give exactly the codes of one width. Gradients reach x (straight through inside the range), both
    ends of the range and the gates. `functional.reference` defines the value and the gradients.

    Args:
        x: A floating-point tensor of any shape and strides.
        beta: The end of the range: one number, or one for each index of axis 0.
        gates: One value for each width; the first one switches the whole tensor.
        signed: Whether the range is [-beta, beta]; otherwise it is [0, beta].
        bits: Increasing widths from 2 to 32.
        alpha: The lower end of an asymmetric range [alpha, beta]: one number, at most 0. Zero is a grid point of every
            width. Such a range is signed, and beta is one number as well.
        dtype: The dtype of the result, not wider than that of x; that of x by default.

    Returns:
        The quantized tensor, in the shape and strides of x.

    Raises:
        TypeError: x or the result is not floating-point, or the result would be wider than x.
        ValueError: Widths, gates or ranges do not fit each other or x.

    Example::

        >>> import torch
        >>> from bayesbits.functional import gated_quantize
        >>> x = torch.tensor([0.5, -3.0], requires_grad=True)
        >>> y = gated_quantize(x, 1.0, [1.0, 0.5], signed=True, bits=(2, 4))  # 2/3 - 0.5 * 2/15; clipped to 1
        >>> y.detach()
        tensor([ 0.6000, -0.8000])
        >>> y.sum().backward()
        >>> x.grad
        tensor([1., 0.])
    """
    bits, dtype = tuple(bits), dtype or x.dtype
    grid.check_bits(bits)
    grid.arithmetic_dtype(x.dtype)
    if not dtype.is_floating_point or dtype.itemsize > x.dtype.itemsize:
        raise TypeError(f"a quantized tensor of {x.dtype} can be written as that or as a narrower one, not as {dtype}")
    if not isinstance(gates, Tensor):
        gates = torch.stack([torch.as_tensor(gate, dtype=torch.float32, device=x.device) for gate in gates])
    if gates.shape != (len(bits),):
        raise ValueError(
            f"{len(bits)} widths {bits} need a vector of {len(bits)} gates, got shape {tuple(gates.shape)}"
        )
    if not isinstance(beta, Tensor):
        beta = torch.tensor(check_range(beta), dtype=grid.arithmetic_dtype(x.dtype), device=x.device)
    if beta.numel() != 1 and (beta.numel() != beta.shape[0] or x.dim() == 0 or beta.numel() != x.shape[0]):
        raise ValueError(
            f"beta must be one number or one for each of axis 0 of x; x has shape {tuple(x.shape)}, "
            f"beta {tuple(beta.shape)}"
        )
    if alpha is not None:
        alpha = _checked_alpha(alpha, beta, signed)
    if _as_one_operation(x, beta.numel()):
        # Weights are kept anyway, and of a network's input nothing but the result is needed.
        again = torch.compiler.is_dynamo_compiling() and x.requires_grad and not isinstance(x, torch.nn.Parameter)
        ends: tuple[Any, ...] = (beta, gates, signed) if alpha is None else (alpha.reshape(()), beta.reshape(()), gates)
        one_operation = custom_ops.quantize if alpha is None else custom_ops.quantize_asymmetric
        if again:
            return custom_ops.quantize_again(one_operation, x, *ends, bits, dtype)
        opaque_result: Tensor = one_operation(x, *ends, bits, dtype)
        return opaque_result
    if _as_plain_operations(x):
        lower = None if alpha is None else alpha.reshape(())
        return reference.differentiable(x, _broadcast(beta, x), gates, signed, bits, lower).to(dtype)
    result: Tensor = _GatedQuantize.apply(x, beta, gates, signed, bits, alpha)  # type: ignore[no-untyped-call]
    return result.to(dtype)


def _checked_alpha(alpha: Tensor | float, beta: Tensor, signed: bool) -> Tensor:
    """The lower end of an asymmetric range as a tensor."""
    if not signed:
        raise ValueError("alpha is the lower end of a range with values below zero, and needs signed=True")
    if not isinstance(alpha, Tensor):
        if not -LARGEST_RANGE <= alpha <= 0:
            raise ValueError(f"alpha must be a number from {-LARGEST_RANGE} to 0, got {alpha}")
        alpha = torch.tensor(alpha, dtype=beta.dtype, device=beta.device)
    if alpha.numel() != 1 or beta.numel() != 1:
        raise ValueError(
            f"an asymmetric range has one alpha and one beta; alpha has shape {tuple(alpha.shape)}, beta "
            f"{tuple(beta.shape)}"
        )
    return alpha


# Outside of these, steps of 16 bits leave the normal numbers of float32.
SMALLEST_RANGE, LARGEST_RANGE = 1e-30, 1e30


def check_range(beta: float) -> float:
    """Raise unless beta is a finite positive number that float32 arithmetic can divide into steps."""
    if not SMALLEST_RANGE <= beta <= LARGEST_RANGE:
        raise ValueError(f"a range must be a number from {SMALLEST_RANGE} to {LARGEST_RANGE}, got {beta}")
    return beta
