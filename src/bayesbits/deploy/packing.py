"""Codes packed into bytes: four codes of 2 bits in a byte, two codes of 4 bits, eight codes of 3 bits in three bytes.

A signed code is stored as its distance from the smallest code. The bits of a code follow those of the code before it,
lowest bit first; the last byte is filled with zeros.
"""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from torch import Tensor

from bayesbits.functional.grid import code_bounds


def pack(codes: Tensor, bits: int) -> Tensor:
    """Signed codes as bytes, in row-major order."""
    low, high = code_bounds(bits, signed=True)
    if codes.numel() and (int(codes.min()) < low or int(codes.max()) > high):
        raise ValueError(f"codes from {int(codes.min())} to {int(codes.max())} do not fit {bits} bits: {low} to {high}")
    distances = (codes.reshape(-1).to(torch.int32) - low).numpy().astype("<u2").view(np.uint8)
    each_bit = np.unpackbits(distances, bitorder="little").reshape(-1, 16)[:, :bits]
    return torch.from_numpy(np.packbits(each_bit.reshape(-1), bitorder="little"))


def unpack(packed: Tensor, bits: int, shape: tuple[int, ...]) -> Tensor:
    """The codes that `pack` was given: int8, or int16 above 8 bits."""
    count = prod(shape)
    if packed.dtype != torch.uint8 or packed.numel() != (count * bits + 7) // 8:
        raise ValueError(f"{count} codes of {bits} bits take {(count * bits + 7) // 8} bytes, found {packed.numel()}")
    low, high = code_bounds(bits, signed=True)
    wide = np.zeros((count, 16), dtype=np.uint8)
    wide[:, :bits] = np.unpackbits(packed.numpy(), bitorder="little", count=count * bits).reshape(count, bits)
    values = np.packbits(wide.reshape(-1), bitorder="little").view("<u2").astype(np.int32) + low
    if count and values.max() > high:
        raise ValueError(f"a code of {values.max()} stands among codes of {bits} bits, which end at {high}")
    return torch.from_numpy(values.astype(np.int8 if bits <= 8 else np.int16)).reshape(shape)
