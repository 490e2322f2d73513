"""Whether channels can be removed, found by running networks: zeros from the producers arrive as zeros."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.records.topology import ChannelGroup, Topology
from tests.graph.networks import output_of


def silence(model: nn.Module, topology: Topology, channels: set[int]) -> None:
    """Make every producer of these channels emit zeros: weight, bias, and the scale and shift of its norm."""
    for layer in topology.layers:
        following = set() if layer.depthwise else set(layer.followers)  # what need not be zero
        rows = torch.tensor([c in channels and index not in following for index, c in enumerate(layer.out_channels)])
        names = (layer.name, layer.norm, layer.instance_norm)
        modules = [model.get_submodule(name) for name in names if name is not None]
        for module in modules:
            for parameter in (module.weight, module.bias, getattr(module, "running_mean", None)):
                if isinstance(parameter, Tensor):
                    transposed = layer.kind == "conv_transpose" and parameter.dim() > 1
                    parameter.data[(slice(None), rows) if transposed else rows] = 0.0


def disturb(model: nn.Module, topology: Topology, channels: set[int]) -> None:
    """Change the weights with which every consumer reads these channels, by much and at random (norms undo shifts)."""
    generator = torch.Generator().manual_seed(1)
    for layer in topology.layers:
        columns = torch.tensor([channel in channels for channel in layer.in_channels])
        if not columns.any():
            continue
        weight = model.get_submodule(layer.name).weight.data
        first = layer.depthwise or layer.kind == "conv_transpose"
        where = columns if first else (slice(None), columns)
        weight[where] += 10 * torch.randn(weight[where].shape, generator=generator)


def difference(model: nn.Module, inputs: Any, topology: Topology, group: ChannelGroup, *, silent: bool) -> float:
    """How far the output moves when the consumers' weights for a few channels of a group change."""
    channels = {group.channels[0], group.channels[group.size // 2], group.channels[-1]}
    changed = copy.deepcopy(model)
    if silent:
        silence(changed, topology, channels)
    before = output_of(changed, inputs)
    disturb(changed, topology, channels)
    return float((output_of(changed, inputs) - before).abs().max() / before.abs().max())


def check_every_group(model: nn.Module, inputs: Any, topology: Topology) -> None:
    assert topology.removable_groups
    for group in topology.removable_groups:
        assert difference(model, inputs, topology, group, silent=True) < 1e-5, group
        assert difference(model, inputs, topology, group, silent=False) > 1e-3, group  # the channels do matter
