"""What a network is: the first of the three records that the rest of the library reads.

A `Topology` lists the weighted layers of a network with their MACs, the tensors that feed them, the residual additions,
the channels that are coupled to each other, and everything that could not be handled, with the reason. `graph.trace`
writes it; attaching, cost and plans only read it. It is plain data with a versioned JSON form, and holds no tensors.

Channels. Every channel of every tensor belongs to a *channel class*, an integer; two channels have the same class when
they can only be removed together (the two sides of a residual addition, the input and output of a depthwise
convolution). A `ChannelGroup` is a run of consecutive classes with the same producers, readers and fate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypeVar

from bayesbits.records.serialization import Record

Part = TypeVar("Part")

POOLED_BITS = 8
"""The width of what is pooled with indices, where nothing is said about operands."""


def output_axis(kind: str, groups: int) -> int:
    """The axis of a layer's weight that holds its output channels; `kind` and `groups` are those of a `Layer`.

    A transposed convolution has its inputs on axis 0. With groups its outputs are spread over both axes, but for a
    depthwise one, whose axis 0 holds both.
    """
    return 1 if kind == "conv_transpose" and groups == 1 else 0


@dataclass(frozen=True)
class Layer:
    """One weighted module: a convolution, a transposed convolution or a linear layer."""

    name: str
    """The module's path in the user's model, such as "layer1.0.conv1"."""
    kind: str
    """"conv", "conv_transpose" or "linear"."""
    parameter: str
    """The weight parameter's first name in the model; layers with tied weights name the same one."""
    weight_shape: tuple[int, ...]
    """The weight's shape as torch stores it."""
    groups: int
    """Convolution groups; 1 for linear layers."""
    bias: bool
    """Whether the layer has a bias."""
    calls: int
    """How often the layer runs in one forward."""
    macs: int
    """Multiply-accumulates for the example inputs, batch included, all calls together."""
    norm: str | None
    """The BatchNorm that alone reads this layer's output, and reads nothing else; None where there is none."""
    activation: str
    """The name of the Activation that this layer reads."""
    in_channels: tuple[int, ...]
    """The channel class of every input channel or feature."""
    out_channels: tuple[int, ...]
    """The channel class of every output channel or feature."""
    depthwise: bool
    """One filter per channel: groups equals both the input and the output channels."""


@dataclass(frozen=True)
class Activation:
    """A tensor that feeds weighted layers; it gets one quantizer, shared by all of its consumers."""

    name: str
    """The first consumer's name with ".input" behind it."""
    consumers: tuple[str, ...]
    """The layers that read it. Tensors that one layer reads in several calls are one Activation."""
    network_input: bool
    """It is a float input of the network, perhaps moved or reshaped, and nothing computed."""


@dataclass(frozen=True)
class Addition:
    """A residual addition of two computed tensors; or, with one operand, a max-pool whose indices are read."""

    name: str
    """The graph's name of the addition, with the path of the module that performs it."""
    operands: tuple[str | None, ...]
    """For each operand the outermost module whose output is exactly that tensor; None where no module's is."""


@dataclass(frozen=True)
class ChannelGroup:
    """Channel classes `first` to `first + size - 1`, which share producers, consumers and fate."""

    name: str
    """The first producing layer's name, or "input" and the like; unique in the topology."""
    first: int
    """The first channel class."""
    size: int
    """How many channel classes there are."""
    producers: tuple[str, ...]
    """The layers with these classes among their output channels."""
    consumers: tuple[str, ...]
    """The layers with these classes among their input channels."""
    reason: str | None
    """Why these channels cannot be removed exactly; None: they can."""

    @property
    def removable(self) -> bool:
        """Whether a channel that its producers emit as zero can be deleted without changing the network's output."""
        return self.reason is None

    @property
    def channels(self) -> range:
        """The channel classes of this group."""
        return range(self.first, self.first + self.size)


@dataclass(frozen=True)
class Unsupported:
    """Something in the network that is left in float and counted at 32 bits."""

    name: str
    """Where: a module path or a node of the graph."""
    what: str
    """What it is, such as "attention product", "functional linear" or "embedding"."""
    macs: int
    """Its multiply-accumulates for the example inputs; 0 where it has none."""
    reason: str
    """Why it is not handled."""


@dataclass(frozen=True)
class Topology(Record):
    """What a network is; see the head of this file."""

    VERSION: ClassVar[int] = 1

    layers: tuple[Layer, ...]
    """The weighted layers, in the order in which they first run."""
    activations: tuple[Activation, ...]
    """The tensors that feed them, in the order of their first consumers."""
    additions: tuple[Addition, ...]
    """The residual additions, in the order in which they run."""
    groups: tuple[ChannelGroup, ...]
    """All channels of all layers; the classes of the groups are 0, 1, 2, ... without gaps."""
    unsupported: tuple[Unsupported, ...]
    """What could not be handled, and why."""
    output_layers: tuple[str, ...]
    """The layers whose output reaches the network's output without passing another weighted layer."""
    other_parameters: int
    """Elements of parameters that belong to no layer here and to no layer's batch norm; they stay in float."""
    traced: bool
    """False where torch.export could not read the network and a run with hooks took its place."""
    version: int = VERSION
    """The version of the JSON form."""

    def layer(self, name: str) -> Layer:
        """The layer of this name; a KeyError that says which names there are."""
        return _find(self._layers, name, "layer")

    def activation(self, name: str) -> Activation:
        """The activation of this name; a KeyError that says which names there are."""
        return _find(self._activations, name, "activation")

    def group(self, name: str) -> ChannelGroup:
        """The channel group of this name; a KeyError that says which names there are."""
        return _find(self._groups, name, "channel group")

    def group_of(self, channel: int) -> ChannelGroup:
        """The group that a channel class belongs to."""
        return self._group_of_channel[channel]

    @property
    def removable_groups(self) -> tuple[ChannelGroup, ...]:
        """The groups whose channels can be removed exactly."""
        return tuple(group for group in self.groups if group.removable)

    @property
    def channels(self) -> int:
        """How many channel classes there are."""
        return sum(group.size for group in self.groups)

    @property
    def macs(self) -> int:
        """All multiply-accumulates that were counted, those of unsupported parts included."""
        return sum(layer.macs for layer in self.layers) + sum(entry.macs for entry in self.unsupported)

    @cached_property
    def weight_tensors(self) -> dict[str, tuple[str, ...]]:
        """The weight tensors by the parameter's name, with the layers that have them: several where they are tied."""
        tensors: dict[str, tuple[str, ...]] = {}
        for layer in self.layers:
            tensors[layer.parameter] = (*tensors.get(layer.parameter, ()), layer.name)
        return tensors

    @cached_property
    def operand_tensors(self) -> dict[str, str]:
        """The operands of residual additions, named "module.output", with the module whose output each of them is."""
        operands = (operand for addition in self.additions for operand in addition.operands)
        return {f"{operand}.output": operand for operand in operands if operand is not None}

    @cached_property
    def pooled_tensors(self) -> frozenset[str]:
        """The operands among them that max-pools read whose indices are used: these always have a quantizer."""
        pools = (addition.operands for addition in self.additions if len(addition.operands) == 1)
        return frozenset(f"{operand}.output" for (operand,) in pools if operand is not None)

    @cached_property
    def _layers(self) -> dict[str, Layer]:
        return {layer.name: layer for layer in self.layers}

    @cached_property
    def _activations(self) -> dict[str, Activation]:
        return {activation.name: activation for activation in self.activations}

    @cached_property
    def _groups(self) -> dict[str, ChannelGroup]:
        return {group.name: group for group in self.groups}

    @cached_property
    def _group_of_channel(self) -> dict[int, ChannelGroup]:
        return {channel: group for group in self.groups for channel in group.channels}


def _find(records: Mapping[str, Part], name: str, what: str) -> Part:
    try:
        return records[name]
    except KeyError:
        raise KeyError(f"no {what} is called {name!r}; there are: {', '.join(records)}") from None
