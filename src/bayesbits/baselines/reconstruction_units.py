"""The units of reconstruction: a single layer, or a block of layers, and the examples that each one learns from.

A layer is compared after its batch norm and its activation function. It is computed for rows of its input
(`reconstruction_rows`), or as a whole. A block is a module that is called as the network calls it, with other weights
in its layers.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.baselines.layerwise import along_channels, channel_axis
from bayesbits.baselines.reconstruction_rows import multiply_rows
from bayesbits.nn import Quantizer
from bayesbits.nn.layer import AttachedLayer
from bayesbits.records.topology import Layer
from bayesbits.utils.torch_private import tree_flatten, tree_unflatten

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
    bias: nn.Parameter | None = None
    """What is added to the output channels after the scale, and may learn; None where nothing is."""
    change: Tensor | None = None
    """What is added to the bias for now."""

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
        if self.change is not None:
            output = output + (self.change if as_rows else along_channels(self.change, self.layer, output))
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

    def spread(self, part: Examples) -> Tensor:
        """The standard deviations of the output channels of the float network; 0 where a channel is removed."""
        axis = -1 if part.as_rows else channel_axis(self.layer, part.targets)
        return part.targets.float().movedim(axis, 0).flatten(1).std(1, correction=0)

    @torch.no_grad()
    def add_to_bias(self, change: Tensor) -> None:
        """Change the bias of the network, and what is computed here."""
        assert self.bias is not None
        self.bias.add_(change)
        self.shift = None if self.shift is None else self.shift + change


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
