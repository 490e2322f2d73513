"""The paper's form: a recursion of quantized residuals under autograd (its equations 1 to 6 and algorithm 1).

This is the oracle that the closed form is tested against and timed against. It is slow and stores every residual; for
training use `gated_quantize`.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from bayesbits.functional import grid


def _round_straight_through(x: Tensor) -> Tensor:
    return x + (torch.round(x) - x).detach()


def _pact_clip(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """clip(x; alpha, beta) = beta - ReLU(beta - alpha - ReLU(x - alpha))."""
    return beta - torch.relu(beta - alpha - torch.relu(x - alpha))


def recursive_gated_quantize(
    x: Tensor, beta: Tensor, gates: Tensor | Sequence[Tensor], *, signed: bool, bits: Sequence[int] = (2, 4, 8, 16, 32)
) -> Tensor:
    """Quantize x as the paper writes it: x_q = z_2 (x_2 + z_4 (eps_4 + z_8 (eps_8 + ...))).

    x_2 is x rounded to the grid of 2 bits, and eps_b is the residual rounded to the grid of b bits. Gradients come from
    autograd, straight through every rounding. `gated_quantize` computes the same in one pass.

    Args:
        x: A floating-point tensor.
        beta: The end of the range.
        gates: One value for each width; the first one switches the whole tensor.
        signed: Whether the range is [-beta, beta]; otherwise it is [0, beta].
        bits: Widths of which each is twice the one before.

    Returns:
        The quantized tensor.

    Raises:
        ValueError: The widths do not double, or there are not as many gates.

    Example::

        >>> import torch
        >>> from bayesbits.functional import recursive_gated_quantize
        >>> x, gates = torch.tensor([0.5]), torch.tensor([1.0, 0.5])
        >>> recursive_gated_quantize(x, torch.tensor(1.0), gates, signed=True, bits=(2, 4))  # 2/3 - 0.5 * 2/15
        tensor([0.6000])
    """
    bits = tuple(bits)
    grid.check_bits(bits)
    if any(high != 2 * low for low, high in itertools.pairwise(bits)):
        raise ValueError(f"the recursion of residuals is defined for widths that double, got {bits}")
    if len(gates) != len(bits):
        raise ValueError(f"{len(bits)} widths {bits} need {len(bits)} gates, got {len(gates)}")
    upper = beta * grid.EDGE
    x = _pact_clip(x, -upper if signed else torch.zeros_like(upper), upper)

    step = grid.step_size(beta, bits[0], signed)
    value = step * _round_straight_through(x / step)
    residuals = [value]
    for low in bits[:-1]:
        step = step / (2**low + 1)
        residual = step * _round_straight_through((x - value) / step)
        value = value + residual
        residuals.append(residual)

    gated = torch.zeros_like(residuals[0])
    for gate, residual in zip(reversed(list(gates)), reversed(residuals), strict=True):
        gated = gate * (residual + gated)
    return gated
