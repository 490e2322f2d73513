"""The launches of the Triton kernels: their compile-time constants, their blocks and programs, and their outputs."""

import functools
import os
from typing import Any

import torch
import triton
from torch import Tensor

from bayesbits.functional import grid
from bayesbits.functional.triton_kernels import _backward_kernel, _finish_kernel, _forward_kernel

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
