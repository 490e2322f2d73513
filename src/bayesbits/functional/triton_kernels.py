"""`gated_quantize` as Triton kernels, for eager mode on the GPU: x is read once forward, x and g once backward.

The kernels are bound by memory only if the arithmetic per element is small, and what the plain definition does most is
divide. Here a division is three multiply-adds with the inverse of the step, computed once: q = x i, r = x - q s (exact in a
fused multiply-add), q + r i. For a correctly rounded inverse this is the correctly rounded quotient (Markstein's
theorem), so that codes equal the definition's bit for bit. Rounding to whole numbers is adding and subtracting
1.5 * 2^23, which float32 rounds half to even by itself.

Triton's interpreter rounds a fused multiply-add twice; there (`FUSED` false) the kernels divide.
"""

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesbits.functional import grid

_EDGE = tl.constexpr(grid.EDGE)
_ROUNDER = tl.constexpr(1.5 * 2**23)
_FUSED = os.environ.get("TRITON_INTERPRET", "0") != "1"

# The fastest of those tried on one H200: elements of a program's block, and its warps.
_FORWARD = {"BLOCK": 4096, "num_warps": 8}
_BACKWARD = {"BLOCK": 4096, "num_warps": 8}
_FINISH = {"BLOCK": 4096, "num_warps": 16}


@triton.jit
def _clip(x, upper, SIGNED: tl.constexpr):
    # Comparisons with NaN are false, so NaN passes through both.
    lower = -upper if SIGNED else 0.0
    return tl.where(x > upper, upper, tl.where(x < lower, lower, x))


@triton.jit
def _step(beta, LEVELS: tl.constexpr, SIGNED: tl.constexpr):
    return tl.div_rn(beta * (2.0 if SIGNED else 1.0), LEVELS * 1.0)


@triton.jit
def _codes(clipped, step, inverse, LEVELS: tl.constexpr, FUSED: tl.constexpr):
    """round_half_even(clipped / step)."""
    if FUSED:
        estimate = clipped * inverse
        quotient = tl.fma(tl.fma(-estimate, step, clipped), inverse, estimate)
    else:
        quotient = tl.div_rn(clipped, step + tl.zeros_like(clipped))
    if LEVELS < 2**22:
        return (quotient + _ROUNDER) - _ROUNDER
    whole = tl.floor(quotient)
    part = quotient - whole
    odd = (whole - 2.0 * tl.floor(whole * 0.5)) == 1.0
    return tl.where((part > 0.5) | ((part == 0.5) & odd), whole + 1.0, whole)


@triton.jit
def _forward_kernel(
    x_pointer, y_pointer, beta_pointer, gates_pointer, columns,
    LEVELS: tl.constexpr, SIGNED: tl.constexpr, FUSED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = tl.arange(0, BLOCK)
    inside = start + offsets < columns
    base = row.to(tl.int64) * columns + start
    x = tl.load(x_pointer + base + offsets, mask=inside, other=0.0).to(tl.float32)
    beta = tl.load(beta_pointer + row).to(tl.float32)

    clipped = _clip(x, beta * _EDGE, SIGNED)
    total = tl.zeros_like(clipped)
    open_so_far = tl.load(gates_pointer).to(tl.float32)
    for i in tl.static_range(len(LEVELS)):
        if i + 1 < len(LEVELS):
            open_further = open_so_far * tl.load(gates_pointer + i + 1).to(tl.float32)
        else:
            open_further = 0.0
        weight = open_so_far - open_further
        open_so_far = open_further
        if LEVELS[i] == 0:
            total += weight * clipped
        else:
            step = _step(beta, LEVELS[i], SIGNED)
            codes = _codes(clipped, step, tl.div_rn(1.0, step), LEVELS[i], FUSED)
            total += (weight * step) * codes
    tl.store(y_pointer + base + offsets, total.to(y_pointer.dtype.element_ty), mask=inside)


@triton.jit
def _backward_kernel(
    grad_pointer, x_pointer, dx_pointer, sums_pointer, beta_pointer, gates_pointer, columns,
    LEVELS: tl.constexpr, SIGNED: tl.constexpr, FUSED: tl.constexpr, SUMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dx, and this block's part of the sums: S_b of every width, then sum g (clip - Q_last), then sum g at the edges."""
    row = tl.program_id(1)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = tl.arange(0, BLOCK)
    inside = start + offsets < columns
    base = row.to(tl.int64) * columns + start
    x = tl.load(x_pointer + base + offsets, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_pointer + base + offsets, mask=inside, other=0.0).to(tl.float32)
    beta = tl.load(beta_pointer + row).to(tl.float32)
    first_gate = tl.load(gates_pointer).to(tl.float32)

    within = (x <= beta) & (x >= (-beta if SIGNED else 0.0))
    dx = tl.where(within, grad * first_gate, 0.0)
    tl.store(dx_pointer + base + offsets, dx.to(dx_pointer.dtype.element_ty), mask=inside)
    if SUMS:
        COUNT: tl.constexpr = len(LEVELS)
        blocks = tl.num_programs(0)
        sums_pointer += row.to(tl.int64) * (COUNT + 2) * blocks + tl.program_id(0)

        edges = tl.where(x > beta, grad, 0.0)
        if SIGNED:
            edges = tl.where(x < -beta, -grad, edges)
        tl.store(sums_pointer + (COUNT + 1) * blocks, tl.sum(edges))

        clipped = _clip(x, beta * _EDGE, SIGNED)
        codes = tl.zeros_like(clipped)
        step = 0.0
        for i in tl.static_range(COUNT):
            if LEVELS[i] == 0:
                total = tl.sum(grad * tl.fma(-codes, step + codes * 0.0, clipped))
                beyond = 0.0
            else:
                finer_step = _step(beta, LEVELS[i], SIGNED)
                finer_codes = _codes(clipped, finer_step, tl.div_rn(1.0, finer_step), LEVELS[i], FUSED)
                if i == 0:
                    total = tl.sum(grad * finer_codes) * finer_step
                elif LEVELS[i] % LEVELS[i - 1] == 0:
                    total = tl.sum(grad * (finer_codes - codes * (LEVELS[i] // LEVELS[i - 1]))) * finer_step
                else:
                    total = tl.sum(grad * (finer_codes * finer_step - codes * step))
                codes = finer_codes
                step = finer_step
            tl.store(sums_pointer + i * blocks, total)
        if LEVELS[COUNT - 1] == 0:
            beyond = 0.0
        else:
            beyond = tl.sum(grad * tl.fma(-codes, step + codes * 0.0, clipped))
        tl.store(sums_pointer + COUNT * blocks, beyond)


@triton.jit
def _total(sums_pointer, index, blocks, BLOCK: tl.constexpr):
    """One of the sums over all blocks."""
    offsets = tl.arange(0, BLOCK)
    accumulator = tl.zeros([BLOCK], tl.float32)
    for start in range(0, blocks, BLOCK):
        inside = start + offsets < blocks
        accumulator += tl.load(sums_pointer + index * blocks + start + offsets, mask=inside, other=0.0)
    return tl.sum(accumulator)


@triton.jit
def _finish_kernel(
    sums_pointer, dbeta_pointer, dgates_pointer, beta_pointer, gates_pointer, blocks,
    COUNT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`reference.gradients_from_sums` for one row; walks the widths from the widest down, as Horner's rule does."""
    row = tl.program_id(0)
    sums_pointer += row.to(tl.int64) * (COUNT + 2) * blocks
    missing = -_total(sums_pointer, COUNT, blocks, BLOCK)
    tail = 0.0
    for step in tl.static_range(COUNT):
        width: tl.constexpr = COUNT - 1 - step
        total = _total(sums_pointer, width, blocks, BLOCK)
        below = 1.0  # product of the gates below this width
        for i in tl.static_range(width):
            below *= tl.load(gates_pointer + i).to(tl.float32)
        tail += total
        tl.store(dgates_pointer + row * COUNT + width, below * tail)
        if width > 0:
            openness = 1.0
            for i in tl.static_range(width):
                openness *= tl.load(gates_pointer + i + 1).to(tl.float32)
            missing += (openness - 1.0) * total
        tail *= tl.load(gates_pointer + width).to(tl.float32)
    first_gate = tl.load(gates_pointer).to(tl.float32)
    beta = tl.load(beta_pointer + row).to(tl.float32)
    edges = _total(sums_pointer, COUNT + 1, blocks, BLOCK)
    dbeta = first_gate * (tl.div_rn(missing, beta) + edges * _EDGE)
    tl.store(dbeta_pointer + row, dbeta.to(dbeta_pointer.dtype.element_ty))


def _levels(bits: tuple[int, ...]) -> tuple[int, ...]:
    """2^b - 1 of every width; 0 stands for a width whose grid float32 cannot hold, where quantizing is clipping."""
    return tuple(2**b - 1 if grid.has_grid(b, torch.float32) else 0 for b in bits)


def supports(x: Tensor) -> bool:
    """float64 is left to the definition: nobody trains in it, and its grids need another rounding."""
    return x.dtype in (torch.float32, torch.bfloat16, torch.float16)


def forward(x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...]) -> Tensor:
    """As `reference.forward`, on a dense matrix x with one range a row."""
    y = torch.empty_like(x)
    rows, columns = x.shape
    launch = (triton.cdiv(columns, _FORWARD["BLOCK"]), rows)
    _forward_kernel[launch](
        x, y, beta, gates, columns, LEVELS=_levels(bits), SIGNED=signed, FUSED=_FUSED, **_FORWARD
    )  # fmt: skip
    return y


def backward(
    grad: Tensor, x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], sums_needed: bool = True
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """As `reference.backward`, on a dense matrix x with one range a row."""
    dx = torch.empty_like(x)
    rows, columns = x.shape
    blocks = triton.cdiv(columns, _BACKWARD["BLOCK"])
    sums = torch.empty(rows, len(bits) + 2, blocks, dtype=torch.float32, device=x.device)
    _backward_kernel[(blocks, rows)](
        grad, x, dx, sums, beta, gates, columns,
        LEVELS=_levels(bits), SIGNED=signed, FUSED=_FUSED, SUMS=sums_needed, **_BACKWARD,
    )  # fmt: skip
    if not sums_needed:
        return dx, None, None
    dbeta = torch.empty_like(beta)
    dgates = torch.empty(rows, len(bits), dtype=torch.float32, device=x.device)
    _finish_kernel[(rows,)](sums, dbeta, dgates, beta, gates, blocks, COUNT=len(bits), **_FINISH)
    return dx, dbeta, (dgates[0] if rows == 1 else dgates.sum(0)).to(gates.dtype)
