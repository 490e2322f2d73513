"""The definition on the CPU without a compiler: block by block, and in backward all widths of a block together.

Every operation of torch is a pass over memory and takes microseconds even for a few numbers, and the definition
(`functional.reference`) has more than a hundred of them. Here they run over blocks that fit into a cache. In backward
the codes of all widths are one tensor [widths, rows, columns], so that the number of operations does not grow with the
widths. Forward leaves out a width whose weight is exactly 0: in training most gates are exactly 0 or 1, and one width
is left. Values are those of the definition, and gradients are the same sums in another order.

What belongs to a range is a tensor here, also where it is one number: torch converts a number of Python into a tensor
for every operation, which takes longer than most of the operations on a small tensor.
"""

import functools
import itertools
import math
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bayesbits.functional import grid, reference

_BLOCK = 2**16  # elements

Place = tuple[slice, slice]
"""The rows and columns of a block."""
Gradients = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]


def forward(
    x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], dtype: torch.dtype | None = None,
    alpha: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As `reference.forward`, on a dense matrix x with one range a row."""
    wide, dtype = grid.arithmetic_dtype(x.dtype), dtype or x.dtype
    weights = _width_weights(gates, bits, wide)
    ranges = _ranges(beta.to(wide), signed, tuple(weights), None if alpha is None else alpha.to(wide))
    if x.numel() <= _BLOCK:
        return _mixture(x.to(wide), ranges, list(weights.values())).to(dtype)
    result = torch.empty_like(x, dtype=dtype)
    for place in _places(x.shape):
        result[place] = _mixture(x[place].to(wide), ranges.of_rows(place[0]), list(weights.values()))
    return result


def _width_weights(gates: Tensor, bits: tuple[int, ...], dtype: torch.dtype) -> dict[int, float]:
    """As `reference.width_weights`, by width and without the widths that add nothing."""
    number: Any = np.float32 if dtype == torch.float32 else np.float64  # numpy rounds as torch does, in less time
    open_so_far, *rest = map(number, gates.tolist())
    weights = {}
    for width, gate in zip(bits, rest, strict=False):
        weights[width] = float(open_so_far - open_so_far * gate)
        open_so_far = open_so_far * gate
    weights[bits[-1]] = float(open_so_far)
    used = {width: weight for width, weight in weights.items() if weight != 0}
    return used or {bits[-1]: weights[bits[-1]]}  # one at least: NaN times 0 is NaN


def _mixture(x: Tensor, ranges: "_Ranges", weights: list[float]) -> Tensor:
    """The sum of the roundings of x to every width, each times its weight."""
    clipped = ranges.clip(x)
    steps = ranges.steps[:-1]
    rounded = ranges.round(clipped / steps).mul_(steps).unbind() if len(steps) else ()
    values = [*rounded, *[clipped] * (len(weights) - len(rounded))]
    total, *further = (value if weight == 1 else value * weight for value, weight in zip(values, weights, strict=True))
    for term in further:
        total = total + term
    return total


def backward(
    grad: Tensor, x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], sums_needed: bool = True,
    alpha: Tensor | None = None,
) -> Gradients:  # fmt: skip
    """As `reference.backward`, on a dense matrix x with one range a row.

    Elements outside of the range are multiplied by 0 here, where the definition leaves them out. With numbers that are
    not finite these differ: then the definition itself runs, so that the trainer finds the same ones.
    """
    wide, values = grid.arithmetic_dtype(x.dtype), tuple(gates.tolist())
    ranges = _ranges(beta.to(wide), signed, bits, None if alpha is None else alpha.to(wide))
    if not sums_needed:
        dx = _straight_through(grad.to(wide), x.to(wide), ranges, values[0])
        control = dx.sum() + ranges.span.sum()
    else:
        dx, sums = _gradients(grad.to(wide), x.to(wide), ranges, values[0])
        of_gates, of_beta, of_alpha = _coefficients(values, bits, wide, signed, alpha is not None)
        dgates = (of_gates * (sums * ranges.span.reshape(-1)).sum(dim=1)).sum(dim=1)
        control = dgates.sum()
    if not math.isfinite(control.item()):
        return reference.backward(grad, x, beta, gates, signed, bits, sums_needed, alpha)
    if not sums_needed:
        return dx.to(x.dtype), None, None, None
    dbeta = (of_beta * sums).sum(dim=0).to(beta.dtype).reshape(beta.shape)
    dalpha = None if alpha is None else (of_alpha * sums).sum(dim=0).to(alpha.dtype).reshape(alpha.shape)
    return dx.to(x.dtype), dbeta, dgates.to(gates.dtype), dalpha


def _straight_through(grad: Tensor, x: Tensor, ranges: "_Ranges", first: float) -> Tensor:
    """dx, where nothing else is needed."""
    inside = torch.ge(x, ranges.low, out=torch.empty_like(x))
    return inside.mul_(torch.le(x, ranges.high, out=torch.empty_like(x))).mul_(grad).mul_(first)


def _gradients(grad: Tensor, x: Tensor, ranges: "_Ranges", first: float) -> tuple[Tensor, Tensor]:
    """dx, and the sums of all `_terms` times grad, with one column for each row of x."""
    if x.numel() <= _BLOCK:
        return _block_gradients(grad, x, ranges, first)
    dx, parts = torch.empty_like(x), []
    for place in _places(x.shape):
        dx[place], part = _block_gradients(grad[place], x[place], ranges.of_rows(place[0]), first)
        parts.append(part)
    sums = torch.cat(parts, dim=1)
    return dx, sums if len(x) > 1 else sums.sum(dim=1, keepdim=True)


def _block_gradients(grad: Tensor, x: Tensor, ranges: "_Ranges", first: float) -> tuple[Tensor, Tensor]:
    """As `_gradients`, of a block."""
    terms = _terms(x, ranges)
    dx = torch.eq(terms[-2], terms[-1], out=torch.empty_like(x)).mul_(grad)  # inside: neither above nor below
    if first != 1:
        dx.mul_(first)
    # Not a product with the gradient as a vector: in float32 its rounding errors are ten times those of this sum.
    return dx, terms.mul_(grad).sum(dim=2)


def _terms(x: Tensor, ranges: "_Ranges") -> Tensor:
    """What the sums of the gradients are about, for every element: [widths with a grid + 3, rows, columns].

    What each width adds to the codes of the one before, in steps of its own; what the last of them leaves of the
    clipped value, in the same steps; whether x lies above the range; and whether it lies below.
    """
    widths = len(ranges.ratios)
    memory = _workspace.tensors_like(x, 2 * widths + 4)
    terms, quotients = memory[: widths + 3], memory[widths + 3 :]
    torch.div(ranges.clip(x), ranges.steps, out=quotients)
    codes = ranges.round(quotients[:-1])
    terms[0].copy_(quotients[0])
    # Exact where ratios are whole numbers, as those of widths that double are.
    torch.addcmul(quotients[1:], codes, ranges.ratios, value=-1, out=terms[1:-2])
    torch.gt(x, ranges.high, out=terms[-2])
    torch.lt(x, ranges.low, out=terms[-1])
    return terms


class _Workspace(threading.local):
    """Memory that each thread keeps from one call to the next.

    The system clears memory that it is given back and asked for again, which takes longer than an operation on it.
    """

    def __init__(self) -> None:
        self.kept: dict[torch.dtype, Tensor] = {}

    def tensors_like(self, x: Tensor, count: int) -> Tensor:
        """Some tensors like x, one after the other, which the next call writes over."""
        kept, needed = self.kept.get(x.dtype), count * x.numel()
        if kept is None or kept.numel() < needed:
            with torch.inference_mode(False):
                kept = self.kept[x.dtype] = x.new_empty(needed)
        return kept[:needed].view(count, *x.shape)


_workspace = _Workspace()


class _Ranges(NamedTuple):
    """The ranges of the rows of a matrix, as columns, and the grids of those widths that have one."""

    low: Tensor
    high: Tensor
    clip_low: Tensor
    clip_high: Tensor
    span: Tensor
    steps: Tensor
    """[widths + 1, rows, 1]: the last step is there twice, or, without any grid, the span of the range."""
    ratios: Tensor
    """[widths, 1, 1]: the ratios of the steps to the next ones."""
    code_bounds: tuple[Tensor, Tensor] | None
    """[widths, 1, 1], of an asymmetric range; the rounded values of other ranges lie inside of theirs."""

    def of_rows(self, rows: slice) -> "_Ranges":
        """The ranges of some of the rows."""
        low, high, clip_low, clip_high, span = (end if end.numel() == 1 else end[rows] for end in self[:5])
        return _Ranges(low, high, clip_low, clip_high, span, self.steps[:, rows], self.ratios, self.code_bounds)

    def clip(self, x: Tensor) -> Tensor:
        """As `grid.clip`."""
        smaller = torch.minimum(x, self.clip_high)
        return torch.maximum(smaller, self.clip_low, out=smaller)

    def round(self, codes: Tensor) -> Tensor:
        """Clipped values in steps of each width, [widths, rows, columns], rounded to codes in place."""
        codes.round_()
        if self.code_bounds is not None:
            torch.minimum(torch.maximum(codes, self.code_bounds[0], out=codes), self.code_bounds[1], out=codes)
        return codes


def _ranges(beta: Tensor, signed: bool, bits: tuple[int, ...], alpha: Tensor | None) -> _Ranges:
    """The ranges of a column of betas, in the arithmetic's precision."""
    zero, edge, levels, ratios = _constants(bits, beta.dtype)
    if alpha is not None:
        span = beta - alpha
        steps = span / levels
        lowest, highest = ((end / steps[:-1]).round_() for end in (alpha, beta))
        bounds = lowest, torch.minimum(highest, lowest + levels[:-1])
        return _Ranges(alpha, beta, alpha, beta, span, steps, ratios, bounds)
    clip_high = beta * edge
    low, clip_low, span = (-beta, -clip_high, beta + beta) if signed else (zero, zero, beta)
    return _Ranges(low, beta, clip_low, clip_high, span, span / levels, ratios, None)


def _levels(bits: tuple[int, ...], dtype: torch.dtype) -> list[int]:
    """How many steps the range has for each width with a grid; the last one twice, or 1 where there is none."""
    levels = [2**width - 1 for width in bits if grid.has_grid(width, dtype)]
    return [*levels, levels[-1] if levels else 1]


@functools.cache
def _constants(bits: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """0, `grid.EDGE`, the levels, and the ratios of each of them to the one before."""
    levels = _levels(bits, dtype)
    ratios = [finer / coarser for coarser, finer in itertools.pairwise(levels)]
    with torch.inference_mode(False):  # they are kept, and used under autograd later
        zero, edge = torch.zeros((), dtype=dtype), torch.tensor(grid.EDGE, dtype=dtype)
        columns = [torch.tensor(numbers, dtype=dtype).reshape(-1, 1, 1) for numbers in (levels, ratios)]
    return zero, edge, columns[0], columns[1]


@functools.lru_cache(maxsize=4096)  # most gates are 0 or 1, and so most combinations of them come again
def _coefficients(
    gates: tuple[float, ...], bits: tuple[int, ...], dtype: torch.dtype, signed: bool, asymmetric: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What the sums of `_terms` are multiplied by for the gradients of each gate, of beta and of alpha.

    A step is the span of the range divided by the levels. In the gradients of the ends the span cancels, as y - clip(x)
    is divided by it there, or by beta; those of the gates are to be multiplied by it.
    """
    levels = _levels(bits, dtype)
    # A width without a grid adds what is missing, and any further one nothing.
    in_spans = np.identity(len(bits) + 1)[:, : len(levels)] / np.array(levels)
    missing, dgates = _gradients_from_sums(in_spans, gates)
    of_gates = np.pad(dgates, [(0, 0), (0, 2)])
    of_beta, of_alpha = np.append(missing, [1.0, 0.0]), np.append(-missing, [0.0, 1.0])
    if not asymmetric:
        of_beta = np.append(missing * (2 if signed else 1), [grid.EDGE, -grid.EDGE if signed else 0.0])
    with torch.inference_mode(False):
        tensors = [torch.from_numpy(one).to(dtype) for one in (of_gates, gates[0] * of_beta, gates[0] * of_alpha)]
    return tensors[0], tensors[1].unsqueeze(1), tensors[2].unsqueeze(1)


def _gradients_from_sums(sums: np.ndarray, gates: tuple[float, ...]) -> tuple[np.ndarray, list[np.ndarray]]:
    """As `reference.gradients_from_sums`, of sums that are the rows of a matrix."""
    openness, factors, before = 1.0, [0.0], [1.0]
    for lower, gate in itertools.pairwise(gates):
        openness *= gate
        factors.append(openness - 1)
        before.append(before[-1] * lower)
    dgates, tail = [], np.zeros(sums.shape[1])
    for gate, product, total in zip(reversed(gates), reversed(before), reversed(sums[:-1]), strict=True):
        tail = total + tail
        dgates.append(product * tail)
        tail = gate * tail
    return np.array([*factors, -1.0]) @ sums, dgates[::-1]


def _places(shape: torch.Size) -> Iterator[Place]:
    """The places of the blocks of a matrix: parts of a single row, or some of several rows."""
    rows, columns = shape
    if rows == 1:
        for start in range(0, columns, _BLOCK):
            yield slice(None), slice(start, start + _BLOCK)
        return
    height = max(1, _BLOCK // columns)
    for start in range(0, rows, height):
        yield slice(start, start + height), slice(None)
