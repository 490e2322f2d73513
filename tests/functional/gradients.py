"""What the tests of the quantizer share: gradients by name, and numbers that no exception of the definition touches."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayesbits.functional import grid


def differentiate(
    function: Callable[..., Tensor], x: Tensor, beta: Tensor, gates: Tensor, grad: Tensor, **options: Any
) -> dict[str, Tensor]:
    """The result of `function` and what autograd derives from it, by name; with an option `alpha`, of that too."""
    x, beta, gates = (t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in (x, beta, gates))
    lower = {key: options.pop(key).detach().clone().requires_grad_() for key in ("alpha",) if key in options}
    y = function(x, beta, gates, **options, **lower)
    y.backward(grad)
    found = {"y": y.detach(), "dx": x.grad, "dbeta": beta.grad, "dgates": gates.grad}
    return found | {f"d{key}": end.grad for key, end in lower.items()}


def straight_through(
    x: Tensor, beta: Tensor, gates: Tensor, *, alpha: Tensor, bits: tuple[int, ...], widest_grid: int = 24
) -> Tensor:
    """The closed form for an asymmetric range, under autograd, straight through every rounding.

    Codes are not limited to the grid: only where both ends lie exactly between two codes would that change them.
    """
    clipped = torch.minimum(torch.maximum(x, alpha), beta)
    values = []
    for width in bits:
        scaled = clipped * (2**width - 1) / (beta - alpha)
        rounded = scaled + (torch.round(scaled) - scaled).detach()
        values.append(rounded * (beta - alpha) / (2**width - 1) if width <= widest_grid else clipped)
    products = [*(gates[: index + 1].prod() for index in range(len(bits))), torch.zeros_like(gates[0])]
    return sum((products[i] - products[i + 1]) * value for i, value in enumerate(values))


def away_from_asymmetric_ties(x: Tensor, alpha: Tensor, beta: Tensor, bits: tuple[int, ...]) -> Tensor:
    """x with zero in the place of what lies near a tie of one of the widths, or near an end of the range."""
    wide, low, high = x.double(), alpha.double(), beta.double()
    unsafe = ((wide - low).abs() < 1e-4 * (high - low)) | ((wide - high).abs() < 1e-4 * (high - low))
    for width in bits:
        position = wide.clamp(low, high) * (2**width - 1) / (high - low)
        outside = (wide < low) | (wide > high)
        unsafe |= (((position - position.floor()) - 0.5).abs() < 0.05) & ~outside
    return torch.where(unsafe, 0.0, x)


def away_from_ties(
    x: Tensor, beta: Tensor, signed: bool, bits: tuple[int, ...] = (16,), near_a_tie: float = 0.05
) -> Tensor:
    """x without what lies near a tie of one of the widths or near an end of the range, where neighbors may be chosen.

    In its place stands zero or, as zero is the lower end of an unsigned range, a number below. On doubling widths a tie
    of any width is a tie of the widest, so that one comparison finds all of them.
    """
    beta = beta.double().reshape(-1, *[1] * (x.dim() - 1)) if beta.numel() > 1 else beta.double()
    unsafe = ((x.double().abs() - beta) / beta).abs() < 1e-4
    for width in bits:
        position = x.double() / grid.step_size(beta, width, signed)
        unsafe |= ((position - position.floor()) - 0.5).abs() < near_a_tie
    return torch.where(unsafe, 0.0 if signed else -1.0, x)
