"""Noise from a counter: uniform numbers that are a function of (seed, step, index) and of nothing else.

The noise of gates must be the same on every rank, be continued bit for bit after a resume, and be drawn inside
compiled functions and CUDA graphs. A hash of a counter that lives in a tensor does all of this; a generator does not.
"""

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x45D9F3B  # below 2^31: products of 32-bit numbers then fit into int64


def _mix(h: Tensor) -> Tensor:
    """A bijection of 32-bit numbers in which every input bit reaches every output bit."""
    for _ in range(2):
        h = ((h ^ (h >> 16)) * _MULTIPLIER) & _MASK
    return h ^ (h >> 16)


def counter_uniform(counter: Tensor, size: int) -> Tensor:
    """`size` float32 numbers in (0, 1), from `counter`, an int64 tensor that holds (seed, step)."""
    seed, step = counter.unbind()
    key = _mix((_mix(seed & _MASK) + step) & _MASK)
    index = torch.arange(size, dtype=torch.int64, device=counter.device)
    bits = _mix((_mix(index) + key) & _MASK)
    return ((bits >> 8).to(torch.float32) + 0.5) * 2.0**-24
