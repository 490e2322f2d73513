"""Rows of a layer's inputs and outputs, from which its rounding is learned.

Each output position of a convolution is a row: the part of the input under the filter, times the filters. Neighboring
positions of one image say much the same, so a few positions of every image are taken, and a step costs the same for
large images as for small ones. A layer whose output is not found again in this way, such as a transposed convolution,
has no rows.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesbits.nn.layer import AttachedLayer
from bayesbits.nn.weight_product import AttachedProduct
from bayesbits.records.topology import Layer

MOST_ROWS = 2**16
"""The most rows of a layer that are held."""


def multiply_rows(rows: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
    """The outputs of a layer for rows of its input: [rows, groups, inputs of a group] -> [rows, outputs]."""
    filters = weight.reshape(groups, len(weight) // groups, -1)
    if groups == 1:
        return F.linear(rows.flatten(1), filters[0], bias)
    if filters.shape[1] == 1:
        output = (rows * filters[:, 0]).sum(2)
    else:
        output = torch.einsum("rgk,gok->rgo", rows, filters).flatten(1)
    return output if bias is None else output + bias


@dataclass(frozen=True)
class Window:
    """How the filter of a convolution moves, by axis; of a linear layer there are no axes."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...] | None
    """None where it is not a number, but a word."""

    @classmethod
    def of(cls, layer: AttachedLayer, kind: str) -> "Window | None":
        """That of a layer; None for transposed convolutions."""
        if kind == "conv_transpose":
            return None
        axes = layer.weight.dim() - 2
        source: Any = layer.source.geometry if isinstance(layer, AttachedProduct) else vars(layer)

        def by_axis(name: str, usual: int) -> tuple[int, ...]:
            value = source.get(name, usual)
            return (value,) * axes if isinstance(value, int) else tuple(value) * (axes if len(value) < axes else 1)

        padding = None if isinstance(source.get("padding"), str) else by_axis("padding", 0)
        return cls(tuple(layer.weight.shape[2:]), by_axis("stride", 1), by_axis("dilation", 1), padding)

    def paddings(self, x: Tensor, output: Tensor) -> list[list[tuple[int, int]]]:
        """The paddings, by axis, that may be: the layer's own, or one that fits the sizes."""
        if not self.kernel:
            return [[]]
        axes = zip(x.shape[2:], output.shape[2:], self.kernel, self.stride, self.dilation, strict=True)
        missing = [
            max(0, (after - 1) * step + (size - 1) * spread + 1 - before) for before, after, size, step, spread in axes
        ]
        own = [] if self.padding is None else [[(one, one) for one in self.padding]]
        return [*own, [(one // 2, one - one // 2) for one in missing], [(one - one // 2, one // 2) for one in missing]]


class RowSampler:
    """Takes rows of a layer's inputs and outputs: the same positions of both, drawn for every example.

    It is made from one call of the layer, and is only used where the layer's output for that call is found again.
    """

    def __init__(self, window: Window, layer: Layer, padding: list[tuple[int, int]]) -> None:
        self.window, self.layer, self.padding = window, layer, padding

    @classmethod
    @torch.no_grad()
    def of(
        cls, module: AttachedLayer, layer: Layer, weight: Tensor, bias: Tensor | None, x: Tensor, output: Tensor
    ) -> "RowSampler | None":
        """A sampler with the padding by which this output follows from x and the weight; None where there is none."""
        window = Window.of(module, layer.kind)
        if window is None:
            return None
        for padding in window.paddings(x, output):
            sampler = cls(window, layer, padding)
            positions = sampler.positions(x[:2], output[:2], 64, torch.Generator().manual_seed(0))
            try:
                rows = sampler.inputs(x[:2], positions)
            except (RuntimeError, IndexError):  # other sizes than this padding gives
                continue
            wanted = sampler.outputs(output[:2], positions)
            found = multiply_rows(rows, weight.to(x.dtype), bias, layer.groups)
            here = wanted.abs().amax(0) > 0  # not the channels that a plan removes
            if bool(((found - wanted)[:, here].abs() <= 1e-3 * wanted.abs().amax()).all()):
                return sampler
        return None

    def positions(self, x: Tensor, output: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """So many positions of every example, all different: [examples, positions]."""
        size = math.prod(output.shape[1:-1] if self.layer.kind == "linear" else output.shape[2:])
        if count >= size:
            drawn = torch.arange(size).expand(len(x), size)
        else:
            drawn = torch.rand(len(x), size, generator=generator).topk(count, dim=1).indices
        return drawn.to(x.device)

    def outputs(self, output: Tensor, positions: Tensor) -> Tensor:
        """The outputs at these positions: [rows, outputs]."""
        if self.layer.kind == "linear":
            flat = output.reshape(len(output), -1, output.shape[-1]).transpose(1, 2)
        else:
            flat = output.flatten(2)
        taken = flat.gather(2, positions.unsqueeze(1).expand(-1, flat.shape[1], -1))
        return taken.transpose(1, 2).flatten(0, 1)

    def inputs(self, x: Tensor, positions: Tensor) -> Tensor:
        """What the filter sees at these positions: [rows, groups, inputs of a group]."""
        if self.layer.kind == "linear":
            return self.outputs(x, positions).unsqueeze(1)
        window = self.window
        padded = F.pad(x, [side for sides in reversed(self.padding) for side in sides])
        sizes = [
            (size - spread * (kernel - 1) - 1) // step + 1
            for size, kernel, step, spread in zip(
                padded.shape[2:], window.kernel, window.stride, window.dilation, strict=True
            )
        ]
        index = torch.zeros(1, dtype=torch.int64, device=x.device)  # of the filter's elements, from its first one
        start = torch.zeros_like(positions)  # of the filter's first element
        rest, width = positions, 1
        for axis in reversed(range(len(sizes))):
            start = start + rest % sizes[axis] * window.stride[axis] * width
            rest = rest // sizes[axis]
            offsets = torch.arange(window.kernel[axis], device=x.device) * window.dilation[axis] * width
            index = (offsets.unsqueeze(1) + index).flatten()
            width *= padded.shape[2 + axis]
        taken = (start.unsqueeze(2) + index).flatten(1).unsqueeze(1).expand(-1, x.shape[1], -1)
        seen = padded.flatten(2).gather(2, taken).reshape(len(x), x.shape[1], positions.shape[1], -1)
        return seen.transpose(1, 2).reshape(positions.numel(), self.layer.groups, -1)
