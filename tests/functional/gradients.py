"""What the tests of the quantizer share: gradients by name, and numbers that no exception of the definition touches."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayesbits.functional import grid


def differentiate(
    function: Callable[..., Tensor], x: Tensor, beta: Tensor, gates: Tensor, grad: Tensor, **options: Any
) -> dict[str, Tensor]:
    """The result of `function` and what autograd derives from it, by name."""
    x, beta, gates = (t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in (x, beta, gates))
    y = function(x, beta, gates, **options)
    y.backward(grad)
    return {"y": y.detach(), "dx": x.grad, "dbeta": beta.grad, "dgates": gates.grad}


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
