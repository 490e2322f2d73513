"""The definition of `gated_quantize`: the paper's equation in closed form, and its gradients, in plain operations.

    x_q = z_2 (x_2 + z_4 (eps_4 + z_8 (eps_8 + ...)))                    (the paper; computed so in `recursion.py`)
        = sum_b (C_b - C_next(b)) Q_b(x),      C_b = product of the gates z_j with j <= b

On widths that double, s_{b/2} is a whole multiple of s_b, so that the residuals of the paper telescope: x_{b/2} + eps_b
is the direct rounding Q_b(x), and the gated sum of residuals is a combination of direct quantizers. C_next of the
widest is 0. This is the definition here, for any increasing widths. Nothing in it is sequential, and backward needs x,
g and a few scalars:

    dx     = g z_2 [alpha <= x <= beta]                                               (straight through)
    dz_b   = (product of the gates below b) R_b,    R_b = S_b + z_next(b) R_next(b)
    dbeta  = z_2 (sum g (y - clip(x)) / beta + sum g ([x > beta] - signed [x < alpha])),   y = x_q / z_2

with the sums S_b = sum g (Q_b(x) - Q_before(b)(x)), and S_2 = sum g Q_2(x). The differences are formed element by
element, as whole numbers of steps where the widths allow: differences of sums would leave nothing of the gradients of
the high gates in float32.

`differentiable` says the same to autograd, for compilers and exporters that take a network apart into plain operations.
The other implementations (compiled, Triton) compute the same, and are tested against this file.
"""

import torch
from torch import Tensor

from bayesbits.functional import grid


def width_weights(gates: Tensor) -> list[Tensor]:
    """C_b - C_next(b) of every width. A plain loop: the backward of `torch.cumprod` waits for the device."""
    weights = []
    open_so_far, *rest = gates.unbind()
    for gate in rest:
        open_further = open_so_far * gate
        weights.append(open_so_far - open_further)
        open_so_far = open_further
    return [*weights, open_so_far]


def forward(
    x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], dtype: torch.dtype | None = None
) -> Tensor:
    """x_q, in the dtype of x unless another one is given. `beta` has a shape that broadcasts against x."""
    result_dtype, dtype = dtype or x.dtype, grid.arithmetic_dtype(x.dtype)
    beta, gates = beta.to(dtype), gates.to(dtype)
    clipped = grid.clip(x.to(dtype), beta, signed)
    total: Tensor | None = None
    for width, weight in zip(bits, width_weights(gates), strict=True):
        value = clipped
        if grid.has_grid(width, dtype):
            value = grid.round_to_codes(clipped, beta, width, signed) * grid.step_size(beta, width, signed)
        total = weight * value if total is None else total + weight * value
    assert total is not None
    return total.to(result_dtype)


def differentiable(x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...]) -> Tensor:
    """x_q as plain operations from which autograd derives the gradients of `backward`.

    The value is that of `forward`. A second expression, from which its own detached value is subtracted, carries the
    gradients: the factors that are constant for each of them are detached.
    """
    dtype = grid.arithmetic_dtype(x.dtype)
    wide_x, wide_beta, wide_gates = x.to(dtype), beta.to(dtype), gates.to(dtype)
    constant_x, constant_beta = wide_x.detach(), wide_beta.detach()
    *residuals, beyond = _residuals(constant_x, constant_beta, signed, bits)

    mixture = torch.zeros_like(constant_x)  # the paper's nested sum, for the gates
    missing = -beyond  # y - clip(x), for the range
    for gate, residual in zip(reversed(wide_gates[1:].unbind()), reversed(residuals[1:]), strict=True):
        mixture = gate * (residual + mixture)
    openness = torch.ones_like(wide_gates[0]).detach()
    for gate, residual in zip(wide_gates[1:].detach().unbind(), residuals[1:], strict=True):
        openness = openness * gate
        missing = missing + (openness - 1) * residual
    mixture = wide_gates[0] * (residuals[0] + mixture)

    below, above = _outside(constant_x, constant_beta, signed)
    side = above.to(dtype) - (below.to(dtype) if signed else 0.0)
    inside = ~(below | above | constant_x.isnan())
    straight_through = torch.where(inside, wide_x, side * grid.EDGE * wide_beta)
    carrier = mixture + wide_gates[0].detach() * (straight_through + missing / constant_beta * wide_beta)
    value = forward(constant_x, constant_beta, wide_gates.detach(), signed, bits)
    return (value + (carrier - carrier.detach())).to(x.dtype)


def backward(
    grad: Tensor, x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], sums_needed: bool = True
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of x, beta and the gates; the last two only where `sums_needed`."""
    dtype = grid.arithmetic_dtype(x.dtype)
    wide_x, wide_grad, wide_beta = x.to(dtype), grad.to(dtype), beta.to(dtype)
    below, above = _outside(wide_x, wide_beta, signed)
    outside = below | above | wide_x.isnan()
    dx = torch.where(outside, 0.0, wide_grad * gates[0].to(dtype)).to(x.dtype)
    if not sums_needed:
        return dx, None, None
    edges = torch.where(above, wide_grad, 0.0)
    if signed:
        edges = edges - torch.where(below, wide_grad, 0.0)
    sums = [(wide_grad * r).sum_to_size(beta.shape) for r in _residuals(wide_x, wide_beta, signed, bits)]
    dbeta, dgates = gradients_from_sums(sums, edges.sum_to_size(beta.shape), wide_beta, gates.to(dtype))
    return dx, dbeta.to(beta.dtype), dgates.to(gates.dtype)


def _outside(x: Tensor, beta: Tensor, signed: bool) -> tuple[Tensor, Tensor]:
    """Where x lies below and above the range."""
    return x < (-beta if signed else torch.zeros_like(beta)), x > beta


def _residuals(x: Tensor, beta: Tensor, signed: bool, bits: tuple[int, ...]) -> list[Tensor]:
    """Q_first(x), then Q_b(x) - Q_before(b)(x) of every further width, then clip(x) - Q_last(x)."""
    clipped = grid.clip(x, beta, signed)
    residuals = []
    codes, value, levels = torch.zeros_like(clipped), torch.zeros_like(clipped), 1
    for width in bits:
        if not grid.has_grid(width, x.dtype):
            residuals.append(clipped - value)
            value = clipped
            continue
        step = grid.step_size(beta, width, signed)
        finer_codes, finer_levels = grid.round_to_codes(clipped, beta, width, signed), 2**width - 1
        if finer_levels % levels == 0:
            residuals.append((finer_codes - codes * (finer_levels // levels)) * step)
        else:
            residuals.append(finer_codes * step - value)
        codes, value, levels = finer_codes, finer_codes * step, finer_levels
    return [*residuals, clipped - value]


def gradients_from_sums(sums: list[Tensor], edges: Tensor, beta: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
    """dbeta and dgates from S_b of every width, the sum of g (clip(x) - Q_last), and the sum of g at the edges.

    y - clip(x) is a sum of the same residuals: each is missing by the part 1 - C_b / z_2 that its gates hold back.
    """
    *sums, beyond = sums
    first, *rest = gates.unbind()
    openness = torch.ones_like(first)  # C_b / z_2
    missing = -beyond
    before = [torch.ones_like(first), first]  # product of the gates below each width
    for gate, residual in zip(rest, sums[1:], strict=True):
        openness = openness * gate
        missing = missing + (openness - 1) * residual
        before.append(before[-1] * gate)
    dbeta = first * (missing / beta + edges * grid.EDGE)

    dgates = []
    tail = torch.zeros_like(first)  # z_next(b) R_next(b)
    for gate, product, total in zip(reversed([first, *rest]), reversed(before[:-1]), reversed(sums), strict=True):
        tail = total.sum() + tail
        dgates.append(product * tail)
        tail = gate * tail
    return dbeta, torch.stack(dgates[::-1])
