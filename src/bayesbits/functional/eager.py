"""The definition on the CPU without a compiler: block by block, in place, and without the widths that add nothing.

Every operation of torch is a pass over memory, and the definition (`functional.reference`) has more than a hundred of
them. Here they run over blocks that fit into a cache, and write into the same few buffers; numbers that belong to a
gate or a range are computed outside of torch, whose operations cost microseconds. A width whose weight is exactly 0 is
left out of the sum: in training most gates are exactly 0 or 1. Values are those of the definition, and gradients are
the same sums in another order.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from bayesbits.functional import grid, reference

_BLOCK = 2**15  # elements
_SHORT_ROW = 64  # of fewer elements: the range of the row is repeated for each of them

Place = tuple[slice, slice]
Number = Tensor | float
"""What belongs to a range: a number where there is one row, and for several rows a tensor that broadcasts over them."""


def forward(
    x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], dtype: torch.dtype | None = None,
    alpha: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As `reference.forward`, on a dense matrix x with one range a row."""
    wide = grid.arithmetic_dtype(x.dtype)
    weights = dict(zip(bits, torch.stack(reference.width_weights(gates.to(wide))).tolist(), strict=True))
    used = [width for width in bits if weights[width] != 0] or [bits[-1]]  # one at least: NaN times 0 is NaN
    result = torch.empty_like(x, dtype=dtype or x.dtype)
    for place, ranges in _blocks(x.shape, beta.to(wide), signed, bits, None if alpha is None else alpha.to(wide)):
        clipped = ranges.clip(x[place].to(wide))
        total: Tensor | None = None
        for width in used:
            value = clipped if width == used[-1] else clipped.clone()
            if (step := ranges.steps[width]) is not None:
                ranges.round(value.div_(step), width).mul_(step)
            if weights[width] != 1:
                value.mul_(weights[width])
            total = value if total is None else total.add_(value)
        assert total is not None
        result[place] = total
    return result


def backward(
    grad: Tensor, x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], sums_needed: bool = True,
    alpha: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """As `reference.backward`, on a dense matrix x with one range a row."""
    wide, first = grid.arithmetic_dtype(x.dtype), gates[0].item()
    dx = torch.empty_like(x)
    parts: list[Tensor] = []
    for place, ranges in _blocks(x.shape, beta.to(wide), signed, bits, None if alpha is None else alpha.to(wide)):
        own_x, own_grad = x[place].to(wide), grad[place].to(wide)
        scaled = own_grad if first == 1 else own_grad * first
        above = below = own_grad.new_zeros(len(own_x))
        if not ranges.contain(own_x):
            outside = (own_x <= ranges.high).logical_and_(own_x >= ranges.low).logical_not_()  # NaN among them
            scaled = scaled.masked_fill(outside, 0.0)
            above = torch.where(own_x > ranges.high, own_grad, 0.0).sum(dim=1)
            below = torch.where(own_x < ranges.low, own_grad, 0.0).sum(dim=1)
        dx[place] = scaled
        if sums_needed:
            parts.append(torch.stack([*_residual_sums(own_grad, own_x, ranges, bits), above, below]))
    if not sums_needed:
        return dx, None, None, None
    sums = (torch.cat(parts, dim=1) if len(x) > 1 else torch.stack(parts).sum(dim=0)).double()
    missing, dgates = _gradients_from_sums(sums[:-2], gates.tolist())
    above, below = sums[-2:]
    if alpha is not None:
        stretch = missing / (beta.double() - alpha.double()).flatten()
        dbeta, dalpha = (first * part for part in (above + stretch, below - stretch))
        return dx, _as(dbeta, beta), dgates.to(gates.dtype), _as(dalpha, alpha)
    edges = above - below if signed else above
    dbeta = first * (missing / beta.flatten().double() + edges * grid.EDGE)
    return dx, _as(dbeta, beta), dgates.to(gates.dtype), None


def _as(gradient: Tensor, end: Tensor) -> Tensor:
    return gradient.to(end.dtype).reshape(end.shape)


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

    def contain(self, x: Tensor) -> bool:
        """Whether every value lies inside its range. Extremes take less time than a comparison of every value."""
        if isinstance(self.high, Tensor):
            smallest, largest = torch.aminmax(x, dim=1, keepdim=True)
            return bool(((largest <= self.high[:, :1]) & (smallest >= torch.as_tensor(self.low)[:, :1])).all())
        smallest, largest = torch.aminmax(x)
        return bool(self.low <= smallest.item() and largest.item() <= self.high)


def _blocks(
    shape: torch.Size, beta: Tensor, signed: bool, bits: tuple[int, ...], alpha: Tensor | None
) -> Iterator[tuple[Place, _Ranges]]:  # fmt: skip
    """The places of the blocks of a matrix, and their ranges; for a column of betas in the arithmetic's precision."""
    rows, columns = shape
    widths = [width for width in bits if grid.has_grid(width, beta.dtype)]
    levels = torch.tensor([2.0**width - 1 for width in widths], dtype=beta.dtype).reshape(-1, 1, 1)
    computed = torch.cat([beta[None], beta[None] * grid.EDGE, grid.range_span(beta, signed, alpha) / levels])
    if rows == 1:
        ranges = _ranges(computed.flatten().tolist(), signed, bits, widths)
        if alpha is not None:
            ranges = _with_alpha(ranges, alpha, beta, widths)
        for start in range(0, columns, _BLOCK):
            yield (slice(None), slice(start, start + _BLOCK)), ranges
        return
    if columns < _SHORT_ROW:
        computed = computed.expand(-1, -1, columns).contiguous()
    height = max(1, _BLOCK // columns)
    for start in range(0, rows, height):
        part = slice(start, start + height)
        yield (part, slice(None)), _ranges(list(computed[:, part].unbind()), signed, bits, widths)


def _ranges(computed: list[Number], signed: bool, bits: tuple[int, ...], widths: list[int]) -> _Ranges:
    high, clip_high, *steps = computed
    low, clip_low = (-high, -clip_high) if signed else (high * 0, clip_high * 0)
    return _Ranges(low, high, clip_low, clip_high, dict.fromkeys(bits) | dict(zip(widths, steps, strict=True)))


def _with_alpha(ranges: _Ranges, alpha: Tensor, beta: Tensor, widths: list[int]) -> _Ranges:
    """The ranges with a lower end of its own; these are clipped to their very ends."""
    bounds = {width: grid.asymmetric_code_bounds(alpha, beta, width) for width in widths}
    low = alpha.item()
    return replace(
        ranges, low=low, clip_low=low, clip_high=ranges.high,
        code_bounds={width: (lowest.item(), highest.item()) for width, (lowest, highest) in bounds.items()},
    )  # fmt: skip


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


def _gradients_from_sums(sums: Tensor, gates: list[float]) -> tuple[Tensor, Tensor]:
    """As `reference.gradients_from_sums`, in float64.

    The rows of `sums` are S_b of every width and the sum of g (clip(x) - Q_last); its columns are the ranges. The
    gradient of a gate is a combination of the S_b of all widths from its own on: each has the product of all gates that
    it passes, but for this one, as its factor.
    """
    openness, factors = 1.0, [0.0]
    for gate in gates[1:]:
        openness *= gate
        factors.append(openness - 1)
    missing = torch.tensor([*factors, -1.0], dtype=torch.float64) @ sums
    rows = []
    for index in range(len(gates)):
        factor, row = 1.0, [0.0] * index
        for gate in gates[:index]:
            factor *= gate
        for gate in [1.0, *gates[index + 1 :]]:
            factor *= gate
            row.append(factor)
        rows.append(row)
    return missing, torch.tensor(rows, dtype=torch.float64) @ sums[:-1].sum(dim=1)
