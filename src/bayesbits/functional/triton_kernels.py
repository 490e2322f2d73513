"""`gated_quantize` as Triton kernels, for eager mode on the GPU: x is read once forward, x and g once backward.

In bfloat16 the kernels are bound by memory only if an element costs about thirty instructions, so these are saved:

- A division is three multiply-adds with the inverse of the step, computed once: q = x i, r = x - q s (exact in a fused
  multiply-add), q + r i. For a correctly rounded inverse this is the correctly rounded quotient (Markstein's theorem),
  and codes equal the definition's bit for bit.
- Rounding to whole numbers is adding and subtracting 1.5 * 2^23, which float32 rounds half to even by itself.
- Where each number of levels 2^b - 1 divides the next (widths that double), the codes of a width follow from those of
  the next finer one: the ratio is odd, so that rounding twice equals rounding once, except where x lies so close to a
  tie that the last bit of its quotient decides. A tie of any width is a tie of all finer ones. So forward looks whether
  any element of a block is close to one; such a block divides for every width. Backward takes either neighbor.

An asymmetric range (`ASYMMETRIC`) has a lower end of its own. Its codes are limited width by width, as its grids end at
different numbers, and a second sum at the edges gives the gradient of the lower end. Where ranges are symmetric or
unsigned, nothing of this is compiled.

Triton's interpreter rounds a fused multiply-add twice; there (`FUSED` false) the kernels divide.
"""

import functools
import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesbits.functional import grid

_EDGE = tl.constexpr(grid.EDGE)
_ROUNDER = tl.constexpr(1.5 * 2**23)
_FUSED = os.environ.get("TRITON_INTERPRET", "0") != "1"

# The fastest of those tried on one H200: elements of a block, its warps, and programs for each multiprocessor. One warp
# finds the closest tie without a barrier; with 64 registers a multiprocessor holds as many of them as it can, which
# pays where an element is two bytes and spills where it is four.
_FORWARD = {"BLOCK": 512, "num_warps": 1}
_REGISTERS = {2: 64, 4: None}
_FORWARD_PROGRAMS = 128
_BACKWARD = {"BLOCK": 1024, "num_warps": 8}
_BACKWARD_PROGRAMS = 4
_FINISHED_AT_ONCE = 4096  # sums of one kind that one program reads together


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
def _weights(gates_pointer, steps, COUNT: tl.constexpr, GRIDS: tl.constexpr):
    """(C_b - C_next(b)) s_b of every width with a grid, and after these C_b of the first without."""
    weights = ()
    for i in tl.static_range(GRIDS):
        if i + 1 < COUNT:
            weight = _open(gates_pointer, 0, i + 1) - _open(gates_pointer, 0, i + 2)
        else:
            weight = _open(gates_pointer, 0, i + 1)
        weights = weights + (weight * steps[i],)
    if GRIDS < COUNT:
        weights = weights + (_open(gates_pointer, 0, GRIDS + 1),)
    return weights


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


@triton.jit
def _direct_mixture(
    clipped, steps, weights, lowest, highest,
    LEVELS: tl.constexpr, GRIDS: tl.constexpr, FUSED: tl.constexpr,
):  # fmt: skip
    """The sum over the widths with a grid, with a division for each."""
    total = tl.zeros_like(clipped)
    for i in tl.static_range(GRIDS):
        codes = _round(_quotient(clipped, steps[i], FUSED), LEVELS[i])
        total = tl.fma(_on_grid(codes, lowest, highest, i, FUSED), weights[i], total)
    return total


@triton.jit
def _chained_mixture(
    clipped, inner, steps, weights, lowest, highest,
    LEVELS: tl.constexpr, GRIDS: tl.constexpr, LARGEST: tl.constexpr, FUSED: tl.constexpr,
):  # fmt: skip
    """The same sum, with one division and the coarser codes following from the finer ones, where no tie is close.

    `inner` has the same codes as `clipped`, whose ends lie a hair from a tie and would always look close to one.
    """
    RATIO: tl.constexpr = LEVELS[GRIDS - 1] // LEVELS[GRIDS - 2]
    quotient = _quotient(inner, steps[GRIDS - 1], FUSED)
    finest = _round(quotient, LEVELS[GRIDS - 1])
    codes = _coarser(finest, RATIO)
    # Four roundings, of both steps and both quotients, move a quotient by less than the largest code times 2^-22.
    # Positive floats order as their bits do, and a warp finds the largest integer in one instruction.
    distance = tl.abs(tl.fma(codes, -1.0 * RATIO, quotient))
    farthest = tl.max(distance.to(tl.int32, bitcast=True))
    if farthest.to(tl.float32, bitcast=True) > RATIO * 0.5 - LARGEST * 2.0**-22:
        total = _direct_mixture(clipped, steps, weights, lowest, highest, LEVELS, GRIDS, FUSED)
    else:
        total = _on_grid(finest, lowest, highest, GRIDS - 1, FUSED) * weights[GRIDS - 1]
        total = tl.fma(_on_grid(codes, lowest, highest, GRIDS - 2, FUSED), weights[GRIDS - 2], total)
        for i in tl.static_range(2, GRIDS):
            codes = _coarser(codes, LEVELS[GRIDS - i] // LEVELS[GRIDS - 1 - i])
            total = tl.fma(_on_grid(codes, lowest, highest, GRIDS - 1 - i, FUSED), weights[GRIDS - 1 - i], total)
    return total


@triton.jit
def _forward_kernel(
    x_pointer, y_pointer, beta_pointer, gates_pointer, alpha_pointer, columns,
    LEVELS: tl.constexpr, GRIDS: tl.constexpr, LARGEST: tl.constexpr, CHAIN: tl.constexpr, SIGNED: tl.constexpr,
    ASYMMETRIC: tl.constexpr, FUSED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1)
    offsets = tl.arange(0, BLOCK)
    beta = tl.load(beta_pointer + row).to(tl.float32)
    lowest = ()
    highest = ()
    if ASYMMETRIC:
        alpha = tl.load(alpha_pointer + row).to(tl.float32)
        steps = _steps(beta - alpha, LEVELS, GRIDS, False)
        lowest = _lowest_codes(alpha, steps, LEVELS, GRIDS, FUSED)
        highest = _highest_codes(beta, lowest, steps, LEVELS, GRIDS, FUSED)
    else:
        steps = _steps(beta, LEVELS, GRIDS, SIGNED)
    weights = _weights(gates_pointer, steps, len(LEVELS), GRIDS)
    x_pointer += row.to(tl.int64) * columns
    y_pointer += row.to(tl.int64) * columns
    start = tl.program_id(0) * BLOCK
    stride = tl.num_programs(0) * BLOCK
    x = tl.load(x_pointer + start + offsets, mask=start + offsets < columns, other=0.0)
    for start in range(start, columns, stride):  # noqa: B020 (Triton has no while with a step)
        # The next block is on its way while this one is computed.
        following = tl.load(x_pointer + start + stride + offsets, mask=start + stride + offsets < columns, other=0.0)
        if ASYMMETRIC:
            clipped = _limit(x.to(tl.float32), alpha, beta, FUSED)
        else:
            clipped = _clip(x.to(tl.float32), beta, SIGNED, FUSED)
        if CHAIN:
            inner = _clip(clipped, beta * (1.0 - 1e-6), SIGNED, FUSED) if SIGNED and not ASYMMETRIC else clipped
            total = _chained_mixture(
                clipped, inner, steps, weights, lowest, highest, LEVELS, GRIDS, LARGEST, FUSED
            )  # fmt: skip
        else:
            total = _direct_mixture(clipped, steps, weights, lowest, highest, LEVELS, GRIDS, FUSED)
        if len(LEVELS) > GRIDS:
            total = tl.fma(clipped, weights[GRIDS], total)
        tl.store(y_pointer + start + offsets, total.to(y_pointer.dtype.element_ty), mask=start + offsets < columns)
        x = following


@triton.jit
def _add(totals, i: tl.constexpr, value):
    """The totals with `value` added to the one at i."""
    result = ()
    for j in tl.static_range(len(totals)):
        result = result + ((totals[j] + value) if j == i else totals[j],)
    return result


@triton.jit
def _add_residuals(
    totals, grad, clipped, steps, lowest, highest,
    LEVELS: tl.constexpr, GRIDS: tl.constexpr, CHAIN: tl.constexpr, FUSED: tl.constexpr,
):  # fmt: skip
    """Add g (Q_b - Q_before(b)) of every width with a grid, in steps of the width where one follows from another.

    Behind these stands what is missing to the clipped value: the first width without a grid adds it all.
    """
    if GRIDS == 0:
        totals = _add(totals, 0, grad * clipped)
    elif CHAIN:
        if len(lowest) == 0:
            # A little less than the inverse, so that the ends of the range stay on the grid.
            codes = tl.fma(clipped, tl.div_rn(1.0 - 2.0**-22, steps[GRIDS - 1]), _ROUNDER) - _ROUNDER
        else:
            # A little more: a tie at an end is rounded outwards at every width, and comes back to the code of the end.
            codes = tl.fma(clipped, tl.div_rn(1.0 + 2.0**-21, steps[GRIDS - 1]), _ROUNDER) - _ROUNDER
        inside = _on_grid(codes, lowest, highest, GRIDS - 1, FUSED)
        totals = _add(totals, GRIDS, grad * tl.fma(inside, -steps[GRIDS - 1], clipped))
        for i in tl.static_range(1, GRIDS):
            codes = _coarser(codes, LEVELS[GRIDS - i] // LEVELS[GRIDS - 1 - i])
            coarser = _on_grid(codes, lowest, highest, GRIDS - 1 - i, FUSED)
            gained = tl.fma(coarser, -1.0 * (LEVELS[GRIDS - i] // LEVELS[GRIDS - 1 - i]), inside)
            totals = _add(totals, GRIDS - i, grad * gained)
            inside = coarser
        totals = _add(totals, 0, grad * inside)
    else:
        value = tl.zeros_like(clipped)
        for i in tl.static_range(GRIDS):
            codes = _round(_quotient(clipped, steps[i], FUSED), LEVELS[i])
            finer = _on_grid(codes, lowest, highest, i, FUSED) * steps[i]
            totals = _add(totals, i, grad * (finer - value))
            value = finer
        totals = _add(totals, GRIDS, grad * (clipped - value))
    return totals


@triton.jit
def _backward_kernel(
    grad_pointer, x_pointer, dx_pointer, sums_pointer, beta_pointer, gates_pointer, alpha_pointer, columns,
    LEVELS: tl.constexpr, GRIDS: tl.constexpr, LARGEST: tl.constexpr, CHAIN: tl.constexpr, SIGNED: tl.constexpr,
    ASYMMETRIC: tl.constexpr, FUSED: tl.constexpr, SUMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dx, and this program's part of the sums: S_b of every width, sum g (clip - Q_last), and sum g at the edges.

    An asymmetric range has the sums of g above and below it apart, in this order.

    Every thread adds up what it sees, and the threads of a program meet once, at the end.
    """
    COUNT: tl.constexpr = len(LEVELS)
    EDGES: tl.constexpr = 2 if ASYMMETRIC else 1
    row = tl.program_id(1)
    offsets = tl.arange(0, BLOCK)
    beta = tl.load(beta_pointer + row).to(tl.float32)
    first_gate = tl.load(gates_pointer).to(tl.float32)
    lowest = ()
    highest = ()
    if ASYMMETRIC:
        alpha = tl.load(alpha_pointer + row).to(tl.float32)
        steps = _steps(beta - alpha, LEVELS, GRIDS, False)
        lowest = _lowest_codes(alpha, steps, LEVELS, GRIDS, FUSED)
        highest = _highest_codes(beta, lowest, steps, LEVELS, GRIDS, FUSED)
    else:
        steps = _steps(beta, LEVELS, GRIDS, SIGNED)
    base = row.to(tl.int64) * columns
    grad_pointer += base
    x_pointer += base
    dx_pointer += base
    totals = ()
    for _ in tl.static_range(GRIDS + 1 + EDGES):
        totals = totals + (tl.zeros([BLOCK], tl.float32),)
    start = tl.program_id(0) * BLOCK
    stride = tl.num_programs(0) * BLOCK
    next_x = tl.load(x_pointer + start + offsets, mask=start + offsets < columns, other=0.0)
    next_grad = tl.load(grad_pointer + start + offsets, mask=start + offsets < columns, other=0.0)
    for start in range(start, columns, stride):  # noqa: B020 (Triton has no while with a step)
        x, grad = next_x.to(tl.float32), next_grad.to(tl.float32)
        # The next block is on its way while this one is computed.
        ahead = start + stride + offsets
        next_x = tl.load(x_pointer + ahead, mask=ahead < columns, other=0.0)
        next_grad = tl.load(grad_pointer + ahead, mask=ahead < columns, other=0.0)
        lower = alpha if ASYMMETRIC else 0.0
        within = tl.abs(x) <= beta if SIGNED and not ASYMMETRIC else (x >= lower) & (x <= beta)
        dx = tl.where(within, grad * first_gate, 0.0)
        tl.store(dx_pointer + start + offsets, dx.to(dx_pointer.dtype.element_ty), mask=start + offsets < columns)
        if SUMS:
            clipped = _limit(x, alpha, beta, FUSED) if ASYMMETRIC else _clip(x, beta, SIGNED, FUSED)
            totals = _add_residuals(totals, grad, clipped, steps, lowest, highest, LEVELS, GRIDS, CHAIN, FUSED)
            if ASYMMETRIC:
                totals = _add(totals, GRIDS + 1, tl.where(x > beta, grad, 0.0))
                totals = _add(totals, GRIDS + 2, tl.where(x < alpha, grad, 0.0))
            else:
                # Outside of the range the clipped value is beta or -beta, or zero where the gradient is not counted.
                totals = _add(totals, GRIDS + 1, tl.where(within, 0.0, grad) * clipped)
    if SUMS:
        programs = tl.num_programs(0)
        sums_pointer += row.to(tl.int64) * (COUNT + 1 + EDGES) * programs + tl.program_id(0)
        for i in tl.static_range(GRIDS + 1):
            scale = steps[i] if CHAIN and i < GRIDS else 1.0
            tl.store(sums_pointer + i * programs, tl.sum(totals[i]) * scale)
        for i in tl.static_range(GRIDS + 1, COUNT + 1):
            tl.store(sums_pointer + i * programs, 0.0)
        if ASYMMETRIC:
            tl.store(sums_pointer + (COUNT + 1) * programs, tl.sum(totals[GRIDS + 1]))
            tl.store(sums_pointer + (COUNT + 2) * programs, tl.sum(totals[GRIDS + 2]))
        else:
            tl.store(sums_pointer + (COUNT + 1) * programs, tl.div_rn(tl.sum(totals[GRIDS + 1]), beta * _EDGE))


@triton.jit
def _finish_kernel(
    sums_pointer, dbeta_pointer, dgates_pointer, dalpha_pointer, beta_pointer, gates_pointer, alpha_pointer,
    rows, programs,
    COUNT: tl.constexpr, GATES: tl.constexpr, ASYMMETRIC: tl.constexpr, ROWS: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """`reference.gradients_from_sums` of all rows, and the gradients of their ends.

    Walks the widths from the widest down, as Horner's rule does.
    """
    EDGES: tl.constexpr = 2 if ASYMMETRIC else 1
    indices = tl.arange(0, GATES)
    dgates = tl.zeros([GATES], tl.float32)
    first_gate = tl.load(gates_pointer).to(tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        part = tl.arange(0, PROGRAMS)[None, :]
        inside = (row[:, None] < rows) & (part < programs)
        places = sums_pointer + row[:, None].to(tl.int64) * (COUNT + 1 + EDGES) * programs + part
        missing = -tl.sum(tl.load(places + COUNT * programs, mask=inside, other=0.0), axis=1)
        edges = tl.sum(tl.load(places + (COUNT + 1) * programs, mask=inside, other=0.0), axis=1)
        tail = tl.zeros([ROWS], tl.float32)
        for step in tl.static_range(COUNT):
            total = tl.sum(tl.load(places + (COUNT - 1 - step) * programs, mask=inside, other=0.0), axis=1)
            tail += total
            gradient = _open(gates_pointer, 0, COUNT - 1 - step) * tl.sum(tail)
            dgates += tl.where(indices == COUNT - 1 - step, gradient, 0.0)
            tail *= tl.load(gates_pointer + COUNT - 1 - step).to(tl.float32)
            missing += (_open(gates_pointer, 1, COUNT - step) - 1.0) * total
        beta = tl.load(beta_pointer + row, mask=row < rows, other=1.0).to(tl.float32)
        if ASYMMETRIC:
            alpha = tl.load(alpha_pointer + row, mask=row < rows, other=0.0).to(tl.float32)
            stretch = tl.div_rn(missing, beta - alpha)
            below = tl.sum(tl.load(places + (COUNT + 2) * programs, mask=inside, other=0.0), axis=1)
            dalpha = first_gate * (below - stretch)
            tl.store(dalpha_pointer + row, dalpha.to(dalpha_pointer.dtype.element_ty), mask=row < rows)
            dbeta = first_gate * (stretch + edges)
        else:
            dbeta = first_gate * (tl.div_rn(missing, beta) + edges * _EDGE)
        tl.store(dbeta_pointer + row, dbeta.to(dbeta_pointer.dtype.element_ty), mask=row < rows)
    tl.store(dgates_pointer + indices, dgates.to(dgates_pointer.dtype.element_ty), mask=indices < COUNT)


@functools.cache
def _widths(bits: tuple[int, ...], signed: bool, asymmetric: bool = False) -> dict[str, Any]:
    """The compile-time constants of a set of widths. No levels stand for a grid that float32 cannot hold."""
    levels = tuple(2**b - 1 if grid.has_grid(b, torch.float32) else 0 for b in bits)
    grids = sum(level > 0 for level in levels)
    chain = grids > 1 and levels[grids - 1] < 2**17 and all(levels[i + 1] % levels[i] == 0 for i in range(grids - 1))
    largest = float(grid.code_bounds(bits[grids - 1], signed and not asymmetric)[1]) if grids else 0.0
    return {
        "LEVELS": levels, "GRIDS": grids, "LARGEST": largest, "CHAIN": chain, "SIGNED": signed,
        "ASYMMETRIC": asymmetric, "FUSED": _FUSED,
    }  # fmt: skip


@functools.cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def forward(
    x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], dtype: torch.dtype | None = None,
    alpha: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As `reference.forward`, on a dense matrix x with one range a row."""
    y = torch.empty_like(x, dtype=dtype)
    rows, columns = x.shape
    programs = min(triton.cdiv(columns, _FORWARD["BLOCK"]), _FORWARD_PROGRAMS * _processors(x.device))
    _forward_kernel[(programs, rows)](
        x, y, beta, gates, alpha, columns,
        **_widths(bits, signed, alpha is not None), **_FORWARD, maxnreg=_REGISTERS[x.element_size()],
    )  # fmt: skip
    return y


def backward(
    grad: Tensor, x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], sums_needed: bool = True,
    alpha: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """As `reference.backward`, on a dense matrix x with one range a row."""
    dx = torch.empty_like(x)
    rows, columns = x.shape
    most = max(1, _BACKWARD_PROGRAMS * _processors(x.device) // rows)
    programs = min(triton.cdiv(columns, _BACKWARD["BLOCK"]), most)
    asymmetric = alpha is not None
    sums = torch.empty(rows, len(bits) + 2 + asymmetric, programs, dtype=torch.float32, device=x.device)
    _backward_kernel[(programs, rows)](
        grad, x, dx, sums, beta, gates, alpha, columns,
        **_widths(bits, signed, asymmetric), SUMS=sums_needed, **_BACKWARD,
    )  # fmt: skip
    if not sums_needed:
        return dx, None, None, None
    dbeta, dgates = torch.empty_like(beta), torch.empty_like(gates)
    dalpha = None if alpha is None else torch.empty_like(alpha)
    parts = triton.next_power_of_2(programs)
    _finish_kernel[(1,)](
        sums, dbeta, dgates, dalpha, beta, gates, alpha, rows, programs,
        COUNT=len(bits), GATES=triton.next_power_of_2(len(bits)), ASYMMETRIC=asymmetric,
        ROWS=min(triton.next_power_of_2(rows), max(1, _FINISHED_AT_ONCE // parts)), PROGRAMS=parts, num_warps=8,
    )  # fmt: skip
    return dx, dbeta, dgates, dalpha
