"""From numbers to codes, from codes to numbers, and what layers and products emit of the two."""

import torch
from torch import Tensor, nn

from bayesbits.records.integer_network import Grid, IntegerLayer, IntegerNetwork, IntegerProduct


class _GridModule(nn.Module):
    """A module with the grid of an activation."""

    step: Tensor

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self.grid = grid
        self.register_buffer("step", torch.tensor(grid.step))

    def extra_repr(self) -> str:
        return f"{self.grid.bits} bits, {self.grid.kind}, step {self.grid.step:.4g}"


class Quantize(_GridModule):
    """Numbers to codes: clip(rint(x / step), low, high)."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.clamp(torch.round(x.float() / self.step), self.grid.low, self.grid.high)


class Dequantize(_GridModule):
    """Codes to numbers: code * step."""

    def forward(self, codes: Tensor) -> Tensor:
        return codes * self.step


def output_scale(network: IntegerNetwork, part: IntegerLayer | IntegerProduct, step: Tensor) -> Tensor:
    """The factor of the sums of a layer or product, whose step is given: to numbers, or to steps of its output."""
    return step if part.output is None else step / torch.tensor(network.grid(part.output).step)


def emit(part: IntegerLayer | IntegerProduct, scaled: Tensor) -> Tensor:
    """What a layer or product emits for its scaled sums: codes, or the numbers themselves."""
    return scaled if part.output is None else torch.clamp(torch.round(scaled), part.output_low, part.output_high)


def describe_output(part: IntegerLayer | IntegerProduct) -> str:
    """What a layer or product emits, in words."""
    return "emits numbers" if part.output is None else f"emits codes {part.output_low}..{part.output_high}"
