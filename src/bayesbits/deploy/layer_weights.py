"""The final weight and bias of a layer: batch norm folded, rounded to codes, without the channels that are removed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesbits.compression.compressor import Compressor
from bayesbits.functional.grid import CODE_BITS, INTEGER_BITS, bias_codes
from bayesbits.nn.folding import fold_factor, folded_bias
from bayesbits.nn.layer import AttachedLayer, LayerParts
from bayesbits.nn.weight_product import find_layer
from bayesbits.records.integer_network import Grid, IntegerLayer, IntegerNetwork
from bayesbits.records.plan import FLOAT_BITS
from bayesbits.records.topology import Layer, output_axis
from bayesbits.utils.torch_private import BatchNorm


@dataclass(frozen=True)
class LayerWeights:
    """The weight and bias of a layer."""

    bits: int
    """The width of the weight."""
    codes: Tensor | None
    """The codes of the weight: int8, or int16 above 8 bits; None above 16 bits."""
    steps: Tensor | None
    """The step of the weight, or one for each output channel, or for each group of each; None without codes."""
    weight: Tensor | None
    """The weight as float32 numbers, where it has no codes."""
    bias: Tensor | None
    """Float32 numbers; int32 codes where they are read from a stored layer that computes in integers."""
    group_size: int | None = None
    """How many neighboring inputs of an output share a step; None where all of them do."""
    widened: int = 0
    """Of how many output channels the grid is coarser than the range asks for, so that the bias fits."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        tensor = self.weight if self.codes is None else self.codes
        assert tensor is not None
        return tuple(tensor.shape)

    def bias_codes(self, grid: Grid) -> Tensor:
        """The bias in whole numbers of input step times weight step, for an input on this grid."""
        assert self.bias is not None
        assert self.steps is not None
        if self.bias.dtype == torch.int32:
            return self.bias
        return bias_codes(self.bias, torch.tensor(grid.step) * self.steps)


def read_weights(compressor: Compressor, layer: Layer, emitted: Tensor) -> LayerWeights:
    """The weight and bias that a fixed network computes with, batch norm folded, in their full shapes.

    `emitted` is a mask over the output channels: weight and bias are zero where it is False.
    """
    module = find_layer(compressor.model, layer.name)
    weight, bias = module.weight, module.bias
    assert isinstance(weight, Tensor)
    assert isinstance(bias, Tensor | None)
    parts = module.parts if isinstance(module, AttachedLayer) else LayerParts()
    factor = None
    if layer.norm is not None:
        norm = compressor.model.get_submodule(layer.norm)
        assert isinstance(norm, BatchNorm)
        factor = fold_factor(norm)
        bias = folded_bias(norm, factor, bias, norm.bias)
    bias = bias if bias is None else torch.where(emitted, bias, 0.0)
    bits = FLOAT_BITS if parts.weight is None else parts.weight.effective_bits()
    if parts.weight is None or bits > CODE_BITS:
        assert isinstance(module, AttachedLayer) or parts.weight is None
        numbers = module.effective_weight() if isinstance(module, AttachedLayer) else weight
        numbers = numbers if factor is None else numbers * _along_outputs(factor, layer)
        return LayerWeights(bits, None, None, _zero_unless(emitted, numbers, layer), bias)
    assert isinstance(module, AttachedLayer)
    codes, steps = module.folded_codes(), module.weight_steps().reshape(-1)
    if parts.group_size is None and parts.weight.range_shape.numel() == 1 and bool((steps == steps[0]).all()):
        steps = steps[:1]
    if factor is not None and parts.norm is None:
        # A tied weight is rounded without the factor: its magnitude is in the steps, its sign goes into the codes.
        codes = codes * _along_outputs(factor.sign(), layer).int()
    if parts.group_size is not None:
        steps = steps.reshape(weight.shape[0], -1)
    wider = module.widening()
    widened = 0 if wider is None else int(((wider > 1) & emitted).sum())
    codes = _zero_unless(emitted, codes, layer).to(torch.int8 if bits <= INTEGER_BITS else torch.int16)
    return LayerWeights(bits, codes, steps, None, bias, parts.group_size, widened)


def keep_zeros(norm: nn.Module, emitted: Tensor) -> None:
    """Let an instance norm, in place, emit zeros for the channels that the layer in front of it does not emit."""
    for tensor in (norm.bias, norm.running_mean):
        if isinstance(tensor, Tensor):
            tensor.masked_fill_(~emitted, 0.0)


def stored_weights(network: IntegerNetwork, layer: IntegerLayer) -> LayerWeights:
    """The weight and bias of a layer of a stored network, whose channels are removed already."""
    coded = f"{layer.name}.codes" in network.tensors
    return LayerWeights(
        bits=layer.bits,
        codes=network.codes(layer.name) if coded else None,
        steps=network.steps(layer.name) if coded else None,
        weight=None if coded else network.tensors[f"{layer.name}.weight"],
        bias=network.bias(layer.name),
        group_size=layer.group_size,
    )


def remove_weight_channels(weights: LayerWeights, layer: Layer, removed: frozenset[int]) -> LayerWeights:
    """Weight and bias without the input and output channels of the removed channel classes."""
    outputs = remaining_channels(layer.out_channels, removed)
    codes, steps, weight, bias = weights.codes, weights.steps, weights.weight, weights.bias
    return LayerWeights(
        bits=weights.bits,
        codes=None if codes is None else select_channels(codes, layer, removed),
        steps=steps if steps is None or steps.shape == (1,) else steps[outputs],
        weight=None if weight is None else select_channels(weight, layer, removed),
        bias=None if bias is None else bias[outputs],
        group_size=weights.group_size,
        widened=weights.widened,
    )


def select_channels(weight: Tensor, layer: Layer, removed: frozenset[int]) -> Tensor:
    """A weight tensor without the input and output channels of the removed channel classes."""
    inputs, outputs = (remaining_channels(channels, removed) for channels in (layer.in_channels, layer.out_channels))
    if layer.groups > 1:  # a depthwise layer has one filter for each channel; other groups lose no channels
        return weight[outputs] if layer.depthwise else weight
    rows, columns = (inputs, outputs) if layer.kind == "conv_transpose" else (outputs, inputs)
    return weight[rows][:, columns]


def remaining_channels(channels: tuple[int, ...], removed: frozenset[int]) -> Tensor:
    """The indices of the channels whose classes are not removed."""
    return torch.tensor([index for index, channel in enumerate(channels) if channel not in removed])


def _zero_unless(emitted: Tensor, weight: Tensor, layer: Layer) -> Tensor:
    """A weight with zeros for the output channels that the layer does not emit."""
    if bool(emitted.all()):
        return weight
    return torch.where(_along_outputs(emitted, layer), weight, torch.zeros((), dtype=weight.dtype))


def _along_outputs(values: Tensor, layer: Layer) -> Tensor:
    """A vector over the output channels in a shape that broadcasts against the weight."""
    if layer.kind == "conv_transpose" and layer.groups > 1:  # each group has rows, one for each input, of its outputs
        inputs = layer.weight_shape[0] // layer.groups
        rows = values.reshape(layer.groups, -1).repeat_interleave(inputs, 0)
        return rows.reshape(*rows.shape, *[1] * (len(layer.weight_shape) - 2))
    axis = output_axis(layer.kind, layer.groups)
    return values.reshape(*[1] * axis, -1, *[1] * (len(layer.weight_shape) - axis - 1))
