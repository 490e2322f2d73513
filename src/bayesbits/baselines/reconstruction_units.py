"""The units of reconstruction: a single layer, or a block of layers, and the examples that each one learns from.

A layer is compared after its batch norm and its activation function. Each output position of a convolution is a row:
the part of the input under the filter, times the filters. Neighboring positions of one image say much the same, so a
few positions of every image are taken, and a step costs the same for large images as for small ones. A layer whose
output is not found again in this way, such as a transposed convolution, is computed as a whole.

A block is a module that is called as the network calls it, with other weights in its layers.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesbits.baselines.layerwise import along_channels, channel_axis
from bayesbits.nn import Quantizer
from bayesbits.nn.layer import AttachedLayer
from bayesbits.nn.product import AttachedProduct
from bayesbits.records.topology import Layer
from bayesbits.utils.torch_private import tree_flatten, tree_unflatten

MOST_ROWS = 2**16
"""The most rows of a layer that are held."""
ROWS_PER_EXAMPLE, FEW_ROWS = 16, 4
"""The number of rows in a step for each example of a batch; few where a filter has few weights, as depthwise ones."""
FEW_WEIGHTS = 64


@dataclass(frozen=True)
class Examples:
    """Inputs of a unit and the outputs that it should return; the first axis of all of them counts examples or rows."""

    inputs: list[Tensor]
    """The tensors that the unit reads, from the quantized network, or from the float one."""
    float_inputs: list[Tensor]
    """The same in the float network; none where activations are not dropped."""
    targets: Tensor
    """The outputs of the float network."""
    as_rows: bool = False
    """Whether these are rows of a layer."""
    quantized: bool = False
    """Whether the layer's own quantizer has been applied to the inputs."""

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, batch_size: int) -> int:
        """The number of examples or rows in a step."""
        if not self.as_rows:
            return batch_size
        few = self.inputs[0].shape[-1] <= FEW_WEIGHTS
        return min(len(self), batch_size * (FEW_ROWS if few else ROWS_PER_EXAMPLE))


@dataclass
class LayerUnit:
    """A layer, and the operations on its output before it is compared with that of the float network."""

    layer: Layer
    """The layer."""
    module: AttachedLayer
    """Its module in the quantized network."""
    scale: Tensor | None
    """The factors of the output channels, of a batch norm and of gates; None where there are none."""
    shift: Tensor | None
    """The numbers that are added to the output channels after that; None where there are none."""
    function: Callable[[Tensor], Tensor]
    """The activation function that follows, or the identity."""

    @property
    def name(self) -> str:
        """The layer's name."""
        return self.layer.name

    @property
    def layers(self) -> list[tuple[str, AttachedLayer]]:
        """The layer itself."""
        return [(self.layer.name, self.module)]

    @property
    def quantizers(self) -> list[Quantizer]:
        """That of the input, if there is one."""
        return [] if self.module.parts.input is None else [self.module.parts.input]

    def finish(self, output: Tensor, *, as_rows: bool = False) -> Tensor:
        """The layer's output with scale, shift and function applied: what is compared."""
        for values, operation in ((self.scale, torch.mul), (self.shift, torch.add)):
            if values is not None:
                output = operation(output, values if as_rows else along_channels(values, self.layer, output))
        return self.function(output)

    def output(self, inputs: list[Tensor], weights: Sequence[Tensor], part: Examples) -> Tensor:
        """The finished output of the layer with another weight."""
        (x,), (weight,) = inputs, weights
        weight = weight.to(x.dtype)
        if self.module.parts.input is not None and not part.quantized:
            x = self.module.parts.input(x)
        bias = None if self.module.bias is None else self.module.bias.detach()
        if part.as_rows:
            return self.finish(multiply_rows(x, weight, bias, self.layer.groups), as_rows=True)
        size = list(part.targets.shape[2:]) if self.layer.kind == "conv_transpose" else None
        return self.finish(self.module.compute(x, weight, bias, size))

    def error(self, output: Tensor, targets: Tensor, part: Examples) -> Tensor:
        """The squared error: summed over channels, averaged over examples and positions."""
        axis = -1 if part.as_rows else channel_axis(self.layer, output)
        return (output - targets).float().square().sum(axis).mean()


@dataclass
class BlockUnit:
    """A module with several layers, called as the network calls it."""

    name: str
    """The module's name."""
    module: nn.Module
    """The module in the quantized network."""
    layers: list[tuple[str, AttachedLayer]]
    """Its layers whose rounding is learned."""
    quantizers: list[Quantizer]
    """The activation quantizers inside of it."""
    form: Any = field(default=None, repr=False)
    """The tree of its arguments and keywords, in which None stands for each tensor of examples."""

    def output(self, inputs: list[Tensor], weights: Sequence[Tensor], part: Examples) -> Tensor:
        """The module's output with other weights in its layers."""
        given = iter(inputs)
        leaves, form = self.form
        arguments, keywords = tree_unflatten([next(given) if leaf is None else leaf for leaf in leaves], form)
        with weights_replaced([layer for _, layer in self.layers], weights):
            result: Tensor = self.module(*arguments, **keywords)
        return result

    def error(self, output: Tensor, targets: Tensor, part: Examples) -> Tensor:
        """The squared error: summed over the axis of channels, averaged over the rest."""
        axis = 1 if output.dim() > 3 else -1
        return (output - targets).float().square().sum(axis).mean()

    def take_inputs(self, value: Any, examples: int) -> list[Tensor]:
        """The tensors of examples among the arguments of a call; the rest is kept as it is."""
        leaves, form = tree_flatten(value)
        batched = [_is_batched(leaf, examples) for leaf in leaves]
        if self.form is None:
            self.form = ([None if here else leaf for leaf, here in zip(leaves, batched, strict=True)], form)
        return [leaf for leaf, here in zip(leaves, batched, strict=True) if here]


Unit = LayerUnit | BlockUnit
"""What is reconstructed at once."""


def _is_batched(leaf: Any, examples: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == examples


class _GivenWeight(nn.Module):
    """Stands in the place of a weight's quantizer, and returns a weight that is given."""

    def __init__(self, quantizer: Quantizer, weight: Tensor) -> None:
        super().__init__()
        self.__dict__["quantizer"] = quantizer  # not a child: it stays where it is
        self.__dict__["given"] = weight

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["quantizer"], name)

    def forward(self, weight: Tensor, stretch: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        given: Tensor = self.__dict__["given"]
        return given.to(weight.dtype if dtype is None else dtype)


@contextmanager
def weights_replaced(layers: Sequence[AttachedLayer], weights: Sequence[Tensor]) -> Iterator[None]:
    """Inside the block the layers compute with these weights in the place of their quantized ones."""
    quantizers = [layer.parts.weight for layer in layers]
    try:
        for layer, quantizer, weight in zip(layers, quantizers, weights, strict=True):
            assert quantizer is not None
            rows, _ = layer.for_rounding(weight)  # as the quantizer would get it
            layer.parts.weight = _GivenWeight(quantizer, rows)  # type: ignore[assignment]
        yield
    finally:
        for layer, quantizer in zip(layers, quantizers, strict=True):
            layer.parts.weight = quantizer


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

    def __init__(self, window: "Window", layer: Layer, padding: list[tuple[int, int]]) -> None:
        self.window, self.layer, self.padding = window, layer, padding

    @classmethod
    @torch.no_grad()
    def of(cls, unit: LayerUnit, weight: Tensor, bias: Tensor | None, x: Tensor, output: Tensor) -> "RowSampler | None":
        """A sampler with the padding by which this output follows from x and the weight; None where there is none."""
        window = Window.of(unit.module, unit.layer.kind)
        if window is None:
            return None
        for padding in window.paddings(x, output):
            sampler = cls(window, unit.layer, padding)
            positions = sampler.positions(x[:2], output[:2], 64, torch.Generator().manual_seed(0))
            try:
                rows = sampler.inputs(x[:2], positions)
            except (RuntimeError, IndexError):  # other sizes than this padding gives
                continue
            wanted = sampler.outputs(output[:2], positions)
            found = multiply_rows(rows, weight.to(x.dtype), bias, unit.layer.groups)
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
