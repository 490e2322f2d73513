"""`gated_quantize` as Triton kernels, for eager mode on the GPU: x is read once forward, x and g once backward.

Where each number of levels 2^b - 1 divides the next (widths that double, `CHAIN`), one division is enough: the codes of
a width follow from those of the next finer one. The ratio is odd, so that rounding twice equals rounding once, except
where x lies so close to a tie that the last bit of its quotient decides. A tie of any width is a tie of all finer ones.
So forward looks whether any element of a block is close to one; such a block divides for every width. Backward takes
either neighbor.

An asymmetric range (`ASYMMETRIC`) has a lower end of its own. Its codes are limited width by width, as its grids end at
different numbers, and a second sum at the edges gives the gradient of the lower end. Where ranges are symmetric or
unsigned, nothing of this is compiled.

The arithmetic that the kernels share is in `functional.triton_arithmetic`; `functional.triton_launch` launches them.
"""

import triton
import triton.language as tl

from bayesbits.functional.triton_arithmetic import (
    _EDGE,
    _ROUNDER,
    _clip,
    _coarser,
    _highest_codes,
    _limit,
    _lowest_codes,
    _on_grid,
    _open,
    _quotient,
    _round,
    _steps,
)


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
