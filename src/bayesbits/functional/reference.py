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

A range is symmetric (alpha = -beta) or unsigned (alpha = 0), or it is asymmetric: then alpha learns too, and with the
length of the range, beta - alpha, in place of beta,

    dbeta  = z_2 ( sum g (y - clip(x)) / (beta - alpha) + sum g [x > beta])
    dalpha = z_2 (-sum g (y - clip(x)) / (beta - alpha) + sum g [x < alpha])

of which the above is the special case alpha = -beta. The steps of doubling widths are whole multiples of each other
there too, but the grids end at different numbers; the closed form is the definition.

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
    x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], dtype: torch.dtype | None = None,
    alpha: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """x_q, in the dtype of x unless another one is given. `alpha` and `beta` have shapes that broadcast against x."""
    result_dtype, dtype = dtype or x.dtype, grid.arithmetic_dtype(x.dtype)
    beta, gates, alpha = beta.to(dtype), gates.to(dtype), None if alpha is None else alpha.to(dtype)
    clipped = grid.clip(x.to(dtype), beta, signed, alpha)
    total: Tensor | None = None
    for width, weight in zip(bits, width_weights(gates), strict=True):
        value = clipped
        if grid.has_grid(width, dtype):
            step = grid.step_size(beta, width, signed, alpha)
            value = grid.round_to_codes(clipped, beta, width, signed, alpha) * step
        total = weight * value if total is None else total + weight * value
    assert total is not None
    return total.to(result_dtype)


def differentiable(
    x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], alpha: Tensor | None = None
) -> Tensor:
    """x_q as plain operations from which autograd derives the gradients of `backward`.

    The value is that of `forward`. A second expression, from which its own detached value is subtracted, carries the
    gradients: the factors that are constant for each of them are detached.
    """
    dtype = grid.arithmetic_dtype(x.dtype)
    wide_x, wide_beta, wide_gates = x.to(dtype), beta.to(dtype), gates.to(dtype)
    wide_alpha = None if alpha is None else alpha.to(dtype)
    constant_x, constant_beta = wide_x.detach(), wide_beta.detach()
    constant_alpha = None if wide_alpha is None else wide_alpha.detach()
    *residuals, beyond = _residuals(constant_x, constant_beta, signed, bits, constant_alpha)

    mixture = torch.zeros_like(constant_x)  # the paper's nested sum, for the gates
    missing = -beyond  # y - clip(x), for the range
    for gate, residual in zip(reversed(wide_gates[1:].unbind()), reversed(residuals[1:]), strict=True):
        mixture = gate * (residual + mixture)
    openness = torch.ones_like(wide_gates[0]).detach()
    for gate, residual in zip(wide_gates[1:].detach().unbind(), residuals[1:], strict=True):
        openness = openness * gate
        missing = missing + (openness - 1) * residual
    mixture = wide_gates[0] * (residuals[0] + mixture)

    below, above = _outside(constant_x, constant_beta, signed, constant_alpha)
    inside = ~(below | above | constant_x.isnan())
    if wide_alpha is None:
        side = above.to(dtype) - (below.to(dtype) if signed else 0.0)
        straight_through = torch.where(inside, wide_x, side * grid.EDGE * wide_beta)
        stretched = missing / constant_beta * wide_beta
    else:
        edges = above.to(dtype) * wide_beta + below.to(dtype) * wide_alpha
        straight_through = torch.where(inside, wide_x, edges)
        span = grid.range_span(wide_beta, signed, wide_alpha)
        stretched = missing / span.detach() * span
    carrier = mixture + wide_gates[0].detach() * (straight_through + stretched)
    value = forward(constant_x, constant_beta, wide_gates.detach(), signed, bits, alpha=constant_alpha)
    return (value + (carrier - carrier.detach())).to(x.dtype)


def backward(
    grad: Tensor, x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], sums_needed: bool = True,
    alpha: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of x, beta, the gates and alpha; all but the first only where `sums_needed`."""
    dtype = grid.arithmetic_dtype(x.dtype)
    wide_x, wide_grad, wide_beta = x.to(dtype), grad.to(dtype), beta.to(dtype)
    wide_alpha = None if alpha is None else alpha.to(dtype)
    below, above = _outside(wide_x, wide_beta, signed, wide_alpha)
    outside = below | above | wide_x.isnan()
    dx = torch.where(outside, 0.0, wide_grad * gates[0].to(dtype)).to(x.dtype)
    if not sums_needed:
        return dx, None, None, None
    residuals = _residuals(wide_x, wide_beta, signed, bits, wide_alpha)
    sums = [(wide_grad * residual).sum_to_size(beta.shape) for residual in residuals]
    missing, dgates = gradients_from_sums(sums, gates.to(dtype))
    edges, first = torch.where(above, wide_grad, 0.0), gates[0].to(dtype)
    if alpha is not None:
        stretch = missing / grid.range_span(wide_beta, signed, wide_alpha)
        dbeta = first * (stretch + edges.sum_to_size(beta.shape))
        dalpha = first * (torch.where(below, wide_grad, 0.0).sum_to_size(beta.shape) - stretch)
        return dx, dbeta.to(beta.dtype), dgates.to(gates.dtype), dalpha.to(alpha.dtype)
    if signed:
        edges = edges - torch.where(below, wide_grad, 0.0)
    dbeta = first * (missing / wide_beta + edges.sum_to_size(beta.shape) * grid.EDGE)
    return dx, dbeta.to(beta.dtype), dgates.to(gates.dtype), None


def _outside(x: Tensor, beta: Tensor, signed: bool, alpha: Tensor | None) -> tuple[Tensor, Tensor]:
    """Where x lies below and above the range."""
    if alpha is None:
        alpha = -beta if signed else torch.zeros_like(beta)
    return x < alpha, x > beta


def _residuals(x: Tensor, beta: Tensor, signed: bool, bits: tuple[int, ...], alpha: Tensor | None) -> list[Tensor]:
    """Q_first(x), then Q_b(x) - Q_before(b)(x) of every further width, then clip(x) - Q_last(x)."""
    clipped = grid.clip(x, beta, signed, alpha)
    residuals = []
    codes, value, levels = torch.zeros_like(clipped), torch.zeros_like(clipped), 1
    for width in bits:
        if not grid.has_grid(width, x.dtype):
            residuals.append(clipped - value)
            value = clipped
            continue
        step = grid.step_size(beta, width, signed, alpha)
        finer_codes, finer_levels = grid.round_to_codes(clipped, beta, width, signed, alpha), 2**width - 1
        if finer_levels % levels == 0:
            residuals.append((finer_codes - codes * (finer_levels // levels)) * step)
        else:
            residuals.append(finer_codes * step - value)
        codes, value, levels = finer_codes, finer_codes * step, finer_levels
    return [*residuals, clipped - value]


def gradients_from_sums(sums: list[Tensor], gates: Tensor) -> tuple[Tensor, Tensor]:
    """sum g (y - clip(x)) and dgates, from S_b of every width and the sum of g (clip(x) - Q_last).

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

    dgates = []
    tail = torch.zeros_like(first)  # z_next(b) R_next(b)
    for gate, product, total in zip(reversed([first, *rest]), reversed(before[:-1]), reversed(sums), strict=True):
        tail = total.sum() + tail
        dgates.append(product * tail)
        tail = gate * tail
    return missing, torch.stack(dgates[::-1])
