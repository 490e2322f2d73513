"""Inputs that are quantized at run time: their grids and codes, derived a second time from the deployed numbers.

As in `derived_constants`, this is independent code: it follows ONNX's definition of DynamicQuantizeLinear in numpy, in
float32 operation by operation, and imports nothing that layers quantize with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesbits.records.integer_network import Grid

BITS, LEVELS = 8, np.float32(255)


@dataclass(frozen=True)
class DynamicInput:
    """A tensor on the grid that it has at run time."""

    grid: Grid
    """The grid of its own range, zero included."""
    codes: NDArray[Any]
    """Its codes, centered."""

    @property
    def code_tensor(self) -> Tensor:
        """The codes as whole numbers in float32."""
        return torch.from_numpy(self.codes)


def quantize_dynamically(name: str, x: Tensor) -> DynamicInput:
    """The grid and the codes of a tensor by its own range."""
    values = np.asarray(x.detach().numpy(), np.float32)
    low = np.minimum(values.min(initial=0), np.float32(0))
    high = np.maximum(values.max(initial=0), np.float32(0))
    step = np.float32((high - low) / LEVELS) or np.float32(1)
    zero_point = int(np.rint(np.clip(-(low / step), np.float32(0), LEVELS)))
    smallest, largest = -zero_point, int(LEVELS) - zero_point
    codes = np.clip(np.rint(values / step), np.float32(smallest), np.float32(largest))
    grid = Grid(name, BITS, True, float(step), smallest, largest, beta=float(high), alpha=float(low))
    return DynamicInput(grid, codes)
