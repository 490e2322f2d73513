"""From numbers to codes, and from codes to numbers."""

import torch
from torch import Tensor, nn

from bayesbits.records.integer_network import Grid


class Quantize(nn.Module):
    """Numbers to codes: clip(rint(x / step), low, high)."""

    step: Tensor

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self.grid = grid
        self.register_buffer("step", torch.tensor(grid.step))

    def forward(self, x: Tensor) -> Tensor:
        return torch.clamp(torch.round(x.float() / self.step), self.grid.low, self.grid.high)

    def extra_repr(self) -> str:
        return _describe(self.grid)


class Dequantize(nn.Module):
    """Codes to numbers: code * step."""

    step: Tensor

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self.grid = grid
        self.register_buffer("step", torch.tensor(grid.step))

    def forward(self, codes: Tensor) -> Tensor:
        return codes * self.step

    def extra_repr(self) -> str:
        return _describe(self.grid)


def _describe(grid: Grid) -> str:
    return f"{grid.bits} bits, {grid.kind}, step {grid.step:.4g}"
