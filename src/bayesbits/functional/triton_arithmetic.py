"""The arithmetic that the Triton kernels share: clipping, steps, codes and their bounds, and products of gates.

In bfloat16 the kernels are bound by memory only if an element costs about thirty instructions, so these are saved:

- A division is three multiply-adds with the inverse of the step, computed once: q = x i, r = x - q s (exact in a fused
  multiply-add), q + r i. For a correctly rounded inverse this is the correctly rounded quotient (Markstein's theorem),
  and codes equal the definition's bit for bit.
- Rounding to whole numbers is adding and subtracting 1.5 * 2^23, which float32 rounds half to even by itself.

Triton's interpreter rounds a fused multiply-add twice; there (`FUSED` false) the kernels divide.
"""

import triton
import triton.language as tl

from bayesbits.functional import grid

_EDGE = tl.constexpr(grid.EDGE)
_ROUNDER = tl.constexpr(1.5 * 2**23)


@triton.jit
def _clip(x, beta, SIGNED: tl.constexpr, FUSED: tl.constexpr):
    upper = beta * _EDGE
    lower = -upper if SIGNED else 0.0
    return _limit(x, lower, upper, FUSED)


@triton.jit
def _limit(x, lower, upper, FUSED: tl.constexpr):
    """x between two numbers; NaN stays NaN."""
    if FUSED:
        return tl.clamp(x, lower, upper, propagate_nan=tl.PropagateNan.ALL)
    # The interpreter's clamp swallows NaN; comparisons with it are false, so that here it passes through.
    return tl.where(x > upper, upper, tl.where(x < lower, lower, x))


@triton.jit
def _steps(beta, LEVELS: tl.constexpr, GRIDS: tl.constexpr, SIGNED: tl.constexpr):
    """The step of every width with a grid."""
    steps = ()
    for i in tl.static_range(GRIDS):
        steps = steps + (tl.div_rn(beta * (2.0 if SIGNED else 1.0), LEVELS[i] * 1.0),)
    return steps


@triton.jit
def _open(gates_pointer, FIRST: tl.constexpr, LAST: tl.constexpr):
    """The product of the gates FIRST..LAST - 1."""
    product = 1.0
    for i in tl.static_range(FIRST, LAST):
        product *= tl.load(gates_pointer + i).to(tl.float32)
    return product


@triton.jit
def _quotient(clipped, step, FUSED: tl.constexpr):
    """clipped / step, correctly rounded."""
    if FUSED:
        inverse = tl.div_rn(1.0, step)
        estimate = clipped * inverse
        return tl.fma(tl.fma(-estimate, step, clipped), inverse, estimate)
    return tl.div_rn(clipped, step + tl.zeros_like(clipped))


@triton.jit
def _round(quotient, LEVELS: tl.constexpr):
    """The nearest whole number, half to even."""
    if LEVELS < 2**22:
        return (quotient + _ROUNDER) - _ROUNDER
    whole = tl.floor(quotient)
    part = quotient - whole
    odd = (whole - 2.0 * tl.floor(whole * 0.5)) == 1.0
    return tl.where((part > 0.5) | ((part == 0.5) & odd), whole + 1.0, whole)


@triton.jit
def _lowest_codes(alpha, steps, LEVELS: tl.constexpr, GRIDS: tl.constexpr, FUSED: tl.constexpr):
    """The smallest code of every width with a grid, of an asymmetric range."""
    lowest = ()
    for i in tl.static_range(GRIDS):
        lowest = lowest + (_round(_quotient(alpha, steps[i], FUSED), LEVELS[i]),)
    return lowest


@triton.jit
def _highest_codes(beta, lowest, steps, LEVELS: tl.constexpr, GRIDS: tl.constexpr, FUSED: tl.constexpr):
    """The largest code of every width with a grid, of an asymmetric range."""
    highest = ()
    for i in tl.static_range(GRIDS):
        code = _round(_quotient(beta, steps[i], FUSED), LEVELS[i])
        highest = highest + (tl.minimum(code, lowest[i] + LEVELS[i] * 1.0),)
    return highest


@triton.jit
def _on_grid(codes, lowest, highest, i: tl.constexpr, FUSED: tl.constexpr):
    """Codes of the width at i inside their bounds; there are bounds only for asymmetric ranges."""
    if len(lowest) > 0:
        codes = _limit(codes, lowest[i], highest[i], FUSED)
    return codes


@triton.jit
def _coarser(codes, RATIO: tl.constexpr):
    """Codes of the next coarser grid, whose step is RATIO times as long. RATIO is odd, so there is no tie here."""
    return tl.fma(codes, 1.0 / RATIO, _ROUNDER) - _ROUNDER
