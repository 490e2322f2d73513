"""The channels of a layer's weight: one layout for all kinds of layers, scaling them, and their largest magnitudes.

Convolutions, linear layers and transposed convolutions store their channels along different axes, and groups divide
them. In the common layout a weight is [output channels, input channels of the group, the rest].
"""

import torch
from torch import Tensor

from bayesbits.baselines.layerwise import norm_of
from bayesbits.graph.channels import Channels
from bayesbits.graph.layer_paths import LayerPaths
from bayesbits.graph.layers import FoundLayer
from bayesbits.nn.folding import fold_factor
from bayesbits.records.topology import ChannelGroup
from bayesbits.utils.torch_private import BatchNorm


def by_channels(layer: FoundLayer, weight: Tensor) -> Tensor:
    """A layer's weight as [output channels, input channels of the group, the rest]."""
    if layer.kind == "conv_transpose":  # stored as [input channels, output channels of the group, ...]
        split = weight.reshape(layer.groups, -1, *weight.shape[1:])
        weight = split.transpose(1, 2).reshape(layer.outputs, -1, *weight.shape[2:])
    return weight.reshape(weight.shape[0], weight.shape[1], -1)


@torch.no_grad()
def rescale(layer: FoundLayer, norm: BatchNorm | None, of_inputs: Tensor, of_outputs: Tensor) -> None:
    """Multiply a layer's input channels and divide its output channels; where all factors are 1, nothing is written.

    Where a batch norm follows, its scale and shift are divided in the place of the output channels.
    """
    weight = layer.weight_value()
    rest = [1] * (weight.dim() - 2)
    if bool((of_inputs != 1).any()):
        if layer.kind == "conv_transpose":
            factor = of_inputs.reshape(-1, 1, *rest)
        else:
            factor = of_inputs.reshape(layer.groups, 1, -1).expand(-1, layer.outputs // layer.groups, -1)
            factor = factor.reshape(layer.outputs, -1, *rest)
        weight.copy_(weight.double() * factor.to(weight.device))
    if bool((of_outputs == 1).all()):
        return
    if norm is not None:
        for parameter in (norm.weight, norm.bias):
            parameter.copy_(parameter.double() / of_outputs.to(parameter.device))
        return
    if layer.kind == "conv_transpose":
        factor = of_outputs.reshape(layer.groups, 1, -1).expand(-1, layer.inputs // layer.groups, -1)
        factor = factor.reshape(layer.inputs, -1, *rest)
    else:
        factor = of_outputs.reshape(-1, 1, *rest)
    weight.copy_(weight.double() / factor.to(weight.device))
    bias = layer.bias_value()
    if bias is not None:
        bias.copy_(bias.double() / of_outputs.to(bias.device))


class Magnitudes:
    """The largest magnitudes of a layer's weight, with its batch norm folded, by output and input channel."""

    def __init__(self, layer: FoundLayer, paths: LayerPaths, channels: Channels) -> None:
        self.values = by_channels(layer, layer.weight_value().detach().double()).abs().amax(dim=2).cpu()
        norm = norm_of(paths.model, layer)
        if norm is not None:
            self.values *= fold_factor(norm, torch.float64).abs().cpu().reshape(-1, 1)
        inputs = torch.tensor(channels.inputs[layer.name]).reshape(layer.groups, 1, -1)
        self.outputs = torch.tensor(channels.outputs[layer.name])
        self.inputs = inputs.expand(-1, layer.outputs // layer.groups, -1).reshape(self.values.shape)

    def scaled(self, scale: Tensor) -> Tensor:
        """The magnitudes after every channel of the network was scaled."""
        return self.values * scale[self.inputs] / scale[self.outputs].unsqueeze(1)

    def of_outputs(self, group: ChannelGroup, scale: Tensor) -> Tensor:
        """The largest magnitude of every channel of a group, as an output of this layer."""
        return _largest(group, self.outputs, self.scaled(scale).amax(dim=1))

    def of_inputs(self, group: ChannelGroup, scale: Tensor) -> Tensor:
        """The largest magnitude of every channel of a group, as an input of this layer."""
        return _largest(group, self.inputs.flatten(), self.scaled(scale).flatten())


def _largest(group: ChannelGroup, channels: Tensor, values: Tensor) -> Tensor:
    inside = (channels >= group.first) & (channels < group.first + group.size)
    largest = torch.zeros(group.size, dtype=values.dtype)
    return largest.scatter_reduce(0, channels[inside] - group.first, values[inside], "amax")
