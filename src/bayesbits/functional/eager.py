"""The definition on the CPU without a compiler: block by block, in place, and without the widths that add nothing.

Every operation of torch is a pass over memory, and the definition (`functional.reference`) has more than a hundred of
them. Here they run over blocks that fit into a cache, and write into the same few buffers; numbers that belong to a
gate or a range are computed outside of torch, whose operations cost microseconds. A width whose weight is exactly 0 is
left out of the sum: in training most gates are exactly 0 or 1. Values are those of the definition, and gradients are
the same sums in another order.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesbits.functional import grid

_BLOCK = 2**15  # elements
_SHORT_ROW = 64  # of fewer elements: the range of the row is repeated for each of them

Place = tuple[slice, slice] | None
"""The place of a block in its matrix; None where it is all of the matrix."""
Number = Tensor | float
"""What belongs to a range: a number where there is one row, and for several rows a tensor that broadcasts over them."""


def forward(
    x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], dtype: torch.dtype | None = None,
    alpha: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As `reference.forward`, on a dense matrix x with one range a row."""
    wide, dtype = grid.arithmetic_dtype(x.dtype), dtype or x.dtype
    weights = _width_weights(gates, bits, wide)
    result: Tensor | None = None
    for place, ranges in _blocks(x.shape, beta.to(wide), signed, bits, None if alpha is None else alpha.to(wide)):
        if place is None:
            return _mixture(x.to(wide), ranges, weights).to(dtype)
        result = torch.empty_like(x, dtype=dtype) if result is None else result
        result[place] = _mixture(x[place].to(wide), ranges, weights)
    assert result is not None
    return result


def _width_weights(gates: Tensor, bits: tuple[int, ...], dtype: torch.dtype) -> dict[int, float]:
    """As `reference.width_weights`, by width and without the widths that add nothing."""
    products = np.cumprod(np.array(gates.tolist(), _scalar(dtype)))
    weights = np.append(products[:-1] - products[1:], products[-1:]).tolist()
    used = {width: weight for width, weight in zip(bits, weights, strict=True) if weight != 0}
    return used or {bits[-1]: weights[-1]}  # one at least: NaN times 0 is NaN


def _mixture(x: Tensor, ranges: "_Ranges", weights: dict[int, float]) -> Tensor:
    """The sum of the roundings of x to every width, each times its weight."""
    clipped = ranges.clip(x)
    total: Tensor | None = None
    for number, (width, weight) in enumerate(weights.items(), start=1):
        value = clipped if number == len(weights) else clipped.clone()
        if (step := ranges.steps[width]) is not None:
            ranges.round(value.div_(step), width).mul_(step)
        if weight != 1:
            value.mul_(weight)
        total = value if total is None else total.add_(value)
    assert total is not None
    return total


def backward(
    grad: Tensor, x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], sums_needed: bool = True,
    alpha: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """As `reference.backward`, on a dense matrix x with one range a row."""
    wide, values = grid.arithmetic_dtype(x.dtype), gates.tolist()
    dx: Tensor | None = None
    parts: list[Tensor] = []
    for place, ranges in _blocks(x.shape, beta.to(wide), signed, bits, None if alpha is None else alpha.to(wide)):
        own_x, own_grad = ((part if place is None else part[place]).to(wide) for part in (x, grad))
        below, above, outside = ranges.outside(own_x)
        scaled = own_grad if values[0] == 1 else own_grad * values[0]
        scaled = scaled if outside is None else scaled.masked_fill(outside, 0.0)
        if place is None:
            dx = scaled.to(x.dtype, copy=scaled is own_grad)
        else:
            dx = torch.empty_like(x) if dx is None else dx
            dx[place] = scaled
        if sums_needed:
            zero = own_grad.new_zeros(())
            edges = [_sum_where(mask, own_grad, zero) for mask in (above, below)]
            parts.append(torch.stack([*_residual_sums(own_grad, own_x, ranges, bits), *edges]))
    assert dx is not None
    if not sums_needed:
        return dx, None, None, None
    sums = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1) if len(x) > 1 else torch.stack(parts).sum(dim=0)
    return dx, *_gradients_of_numbers(sums.double().numpy(), beta, gates, values, signed, alpha)


def _sum_where(mask: Tensor | None, grad: Tensor, zero: Tensor) -> Tensor:
    """The sums of the rows of grad, of those elements alone that are in a mask."""
    return zero.expand(len(grad)) if mask is None else torch.where(mask, grad, zero).sum(dim=1)


@dataclass(frozen=True)
class _Ranges:
    """The ranges of the rows of a block."""

    low: Number
    high: Number
    clip_low: Number
    clip_high: Number
    steps: dict[int, Number | None]
    """Of every width; None where it has no grid."""
    code_bounds: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Of every width with a grid, for an asymmetric range; the rounded values of other ranges lie inside of theirs."""

    def round(self, codes: Tensor, width: int) -> Tensor:
        """Values in steps of a width, rounded to codes in place."""
        codes = _round(codes, width)
        return codes.clamp_(*self.code_bounds[width]) if self.code_bounds else codes

    def clip(self, x: Tensor) -> Tensor:
        """As `grid.clip`, into a new tensor."""
        if isinstance(self.clip_high, Tensor):
            return torch.maximum(torch.minimum(x, self.clip_high), torch.as_tensor(self.clip_low))
        assert not isinstance(self.clip_low, Tensor)
        return torch.clamp(x, self.clip_low, self.clip_high)

    def outside(self, x: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Where values lie below the range, above it, and not in it, NaN among them; None where that is nowhere.

        Extremes take less time than a comparison of every value.
        """
        if isinstance(self.high, Tensor):
            smallest, largest = torch.aminmax(x, dim=1, keepdim=True)
            low = torch.as_tensor(self.low)
            falls, rises = (not mask.all() for mask in (smallest >= low[:, :1], largest <= self.high[:, :1]))
        else:
            smallest, largest = torch.aminmax(x)
            falls, rises = not smallest.item() >= self.low, not largest.item() <= self.high
        below, above = x < self.low if falls else None, x > self.high if rises else None
        if below is not None and above is not None:
            return below, above, (x <= self.high).logical_and_(x >= self.low).logical_not_()  # NaN among them
        return below, above, above if below is None else below


def _blocks(
    shape: torch.Size, beta: Tensor, signed: bool, bits: tuple[int, ...], alpha: Tensor | None
) -> Iterator[tuple[Place, _Ranges]]:  # fmt: skip
    """The places of the blocks of a matrix, and their ranges; for a column of betas in the arithmetic's precision."""
    rows, columns = shape
    whole = rows * columns <= _BLOCK
    if rows == 1:
        ranges = _one_range(beta, signed, bits, alpha)
        for start in range(0, columns, _BLOCK):
            yield None if whole else (slice(None), slice(start, start + _BLOCK)), ranges
        return
    widths = [width for width in bits if grid.has_grid(width, beta.dtype)]
    levels = torch.tensor([2.0**width - 1 for width in widths], dtype=beta.dtype).reshape(-1, 1, 1)
    ends = torch.stack([beta, beta * grid.EDGE])
    computed = torch.cat([ends, -ends if signed else torch.zeros_like(ends), grid.range_span(beta, signed) / levels])
    if columns < _SHORT_ROW:
        computed = computed.expand(-1, -1, columns).contiguous()
    height = max(1, _BLOCK // columns)
    for start in range(0, rows, height):
        part = slice(start, start + height)
        high, clip_high, low, clip_low, *steps = (computed if whole else computed[:, part]).unbind()
        steps_of = dict.fromkeys(bits) | dict(zip(widths, steps, strict=True))
        yield None if whole else (part, slice(None)), _Ranges(low, high, clip_low, clip_high, steps_of)


def _one_range(beta: Tensor, signed: bool, bits: tuple[int, ...], alpha: Tensor | None) -> _Ranges:
    """The range of a single row. numpy rounds as torch does, and computes one number in a tenth of the time."""
    number = _scalar(beta.dtype)
    widths = [width for width in bits if grid.has_grid(width, beta.dtype)]
    levels = {width: number(2**width - 1) for width in widths}
    high = number(beta.item())
    with np.errstate(all="ignore"):  # a range that is NaN, which training stops at
        if alpha is None:
            clip_high, span = high * number(grid.EDGE), high + high if signed else high
            low, clip_low = (-high, -clip_high) if signed else (high * number(0), clip_high * number(0))
        else:
            low = clip_low = number(alpha.item())
            clip_high, span = high, high - low
        steps = {width: span / levels[width] for width in widths}
        bounds = {}
        for width in widths if alpha is not None else ():
            lowest = np.rint(low / steps[width])
            highest = np.minimum(np.rint(high / steps[width]), lowest + levels[width])
            bounds[width] = (float(lowest), float(highest))
    steps_of = dict.fromkeys(bits) | {width: float(step) for width, step in steps.items()}
    return _Ranges(float(low), float(high), float(clip_low), float(clip_high), steps_of, bounds)


def _scalar(dtype: torch.dtype) -> type[np.float32] | type[np.float64]:
    """The class of numpy's numbers that have the precision of an arithmetic."""
    return np.float32 if dtype == torch.float32 else np.float64


def _residual_sums(grad: Tensor, x: Tensor, ranges: _Ranges, bits: tuple[int, ...]) -> list[Tensor]:
    """The sums, by row, of grad times the residuals: what each width adds to the one before, and what is left over."""
    clipped = ranges.clip(x)
    codes, finer, residual = torch.empty_like(clipped), torch.empty_like(clipped), torch.empty_like(clipped)
    sums: list[Tensor] = []
    before: Number | None = None  # the step of the codes
    levels = 1
    for width in bits:
        step, finer_levels = ranges.steps[width], 2**width - 1
        if step is None:
            sums.append(_missing(clipped, codes, before, residual).mul_(grad).sum(dim=1))
            return [*sums, *[torch.zeros_like(sums[0])] * (len(bits) + 1 - len(sums))]
        ranges.round(torch.div(clipped, step, out=finer), width)
        if before is None:
            torch.mul(finer, step, out=residual)
        elif finer_levels % levels == 0:
            torch.sub(finer, codes, alpha=finer_levels // levels, out=residual).mul_(step)
        else:
            torch.mul(finer, step, out=residual).sub_(codes.mul_(before))
        sums.append(residual.mul_(grad).sum(dim=1))
        codes, finer, before, levels = finer, codes, step, finer_levels
    return [*sums, _missing(clipped, codes, before, residual).mul_(grad).sum(dim=1)]


def _round(codes: Tensor, width: int) -> Tensor:
    """Numbers in the size of codes of a width, rounded to whole ones, half to even, in place.

    Adding a number at which the distance of two neighboring floats is 1 rounds in this way, and takes a fraction of the
    time of `torch.round`; in float32 it does so for numbers up to 2^22.
    """
    if codes.dtype == torch.float32 and width > 22:
        return codes.round_()
    shift = 1.5 * 2.0 ** (23 if codes.dtype == torch.float32 else 52)
    return codes.add_(shift).sub_(shift)


def _missing(clipped: Tensor, codes: Tensor, step: Number | None, out: Tensor) -> Tensor:
    """What codes leave of the clipped values; all of it where there are none yet."""
    return out.copy_(clipped) if step is None else torch.sub(clipped, codes.mul_(step), out=out)


def _gradients_of_numbers(
    sums: np.ndarray, beta: Tensor, gates: Tensor, values: list[float], signed: bool, alpha: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of beta, the gates and alpha, as `reference.backward` has them, in float64.

    The rows of `sums` are S_b of every width, the sum of g (clip(x) - Q_last), and those of g above and below the
    range; its columns are the ranges.
    """
    *residuals, above, below = sums
    missing, dgates = _gradients_from_sums(np.stack(residuals), values)
    beta_values, first = beta.detach().double().flatten().numpy(), values[0]
    with np.errstate(all="ignore"):  # gradients that are not finite are the trainer's to report
        if alpha is None:
            edges = above - below if signed else above
            dbeta, dalpha = first * (missing / beta_values + edges * grid.EDGE), None
        else:
            stretch = missing / (beta_values - alpha.detach().double().flatten().numpy())
            dbeta, dalpha = first * (above + stretch), first * (below - stretch)
    return _as(dbeta, beta), _as(dgates, gates), None if alpha is None else _as(dalpha, alpha)


def _as(gradient: Any, of: Tensor) -> Tensor:
    return torch.from_numpy(gradient).to(of.dtype).reshape(of.shape)


def _gradients_from_sums(sums: np.ndarray, gates: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """As `reference.gradients_from_sums`.

    The gradient of a gate is a combination of the S_b of all widths from its own on: each has the product of all gates
    that it passes, but for this one, as its factor.
    """
    openness, factors = 1.0, [0.0]
    for gate in gates[1:]:
        openness *= gate
        factors.append(openness - 1)
    rows = []
    for index in range(len(gates)):
        factor, row = 1.0, [0.0] * index
        for gate in gates[:index]:
            factor *= gate
        for gate in [1.0, *gates[index + 1 :]]:
            factor *= gate
            row.append(factor)
        rows.append(row)
    return np.array([*factors, -1.0]) @ sums, np.array(rows) @ sums[:-1].sum(axis=1)
