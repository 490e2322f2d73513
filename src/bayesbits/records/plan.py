"""The `Plan`: the decision about a network, which is the width of every tensor and the channels of every layer.

Every method ends in a plan; cost, fine-tuning and deployment only read it. It is plain data with a versioned JSON form.

Channels. A plan names the output channels that a layer keeps. A channel class of the network is removed if every layer
that makes it drops it. A depthwise layer makes no channels of its own: it follows its producers, and is not named. Nor
are layers that only make queries and keys: their heads go with those of the values. A layer keeps or drops a head as a
whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar

from bayesbits.records.serialization import Record
from bayesbits.records.topology import POOLED_BITS, Layer, Topology
from bayesbits.utils.checks import is_integer

FLOAT_BITS = 32
"""The width of a tensor that is left in float."""

WIDTHS = (0, *range(2, 33))


@dataclass(frozen=True)
class Plan(Record):
    """The widths of all tensors of a network, and the output channels that its layers keep.

    Every method, Bayesian Bits and the baselines, ends in a plan. `Compressor.fix` makes it final; `save` writes it to
    a file and `Plan.load` reads it.

    Args:
        bits: The width of every weight, activation and quantized operand of an addition, by the tensor's name. 32 is
            float, and so is a table of embeddings that is not named. 0 is the weight of a layer that is gone, because
            other layers make the same channels.
        kept: The indices of the output channels that a layer keeps, increasing, by the layer's name. A layer that is
            not named keeps all of its channels.
        version: The version of the JSON form.

    Raises:
        ValueError: If a width is not an integer from 2 to 32 or 0, or if indices are not increasing.

    Example::

        >>> import bayesbits as bb
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
        >>> topology = bb.trace(model, torch.zeros(1, 4))
        >>> plan = bb.Plan.uniform(topology, weights=4, activations=8)
        >>> plan.bits
        {'0.weight': 4, '2.weight': 4, '0.input': 8, '2.input': 8}
        >>> smaller = plan.without(topology, topology.group("0").channels[:4])
        >>> smaller.kept
        {'0': (4, 5)}
        >>> bb.Plan.from_json(smaller.to_json()) == smaller
        True
    """

    VERSION: ClassVar[int] = 1

    bits: Mapping[str, int]
    """The width of every weight, every activation and every quantized operand, by the tensor's name.

    32 is float, and so is a table of embeddings that is not named. 0 is the weight of a layer that is gone, because
    other layers make the same channels.
    """
    kept: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The indices of the output channels that a layer keeps, increasing; a layer that is not named keeps all."""
    version: int = VERSION
    """The version of the JSON form."""

    def __post_init__(self) -> None:
        for tensor, width in self.bits.items():
            if not is_integer(width) or width not in WIDTHS:
                raise ValueError(f"Plan.bits[{tensor!r}] is {width!r}; it is an integer from 2 to 32, or 0")
        for layer, channels in self.kept.items():
            if not all(map(is_integer, channels)) or any(left >= right for left, right in pairwise((-1, *channels))):
                raise ValueError(f"Plan.kept[{layer!r}] is {channels!r}; it lists increasing indices of channels")
        object.__setattr__(self, "kept", {layer: tuple(channels) for layer, channels in self.kept.items()})
        super().__post_init__()

    @classmethod
    def uniform(
        cls,
        topology: Topology,
        weights: int = 8,
        activations: int = 8,
        input_bits: int = 8,
        residual_bits: int | None = 8,
    ) -> Plan:
        """The plan with one width for all weights and one for all activations; all channels stay.

        Args:
            topology: The network.
            weights: The width of every weight, tables of embeddings and recurrent layers included.
            activations: The width of every activation that is not an input of the network.
            input_bits: The width of the network's inputs.
            residual_bits: The width of the operands of residual additions. `Compressor.fix` passes over those that have
                no quantizer. None leaves all of them in float.
        """
        bits = dict.fromkeys((*topology.weight_tensors, *topology.table_tensors), weights)
        bits.update({entry.name: input_bits if entry.network_input else activations for entry in topology.activations})
        operands = topology.pooled_tensors if residual_bits is None else topology.operand_tensors
        bits.update(dict.fromkeys(operands, POOLED_BITS if residual_bits is None else residual_bits))
        return cls(bits)

    def without(self, topology: Topology, channels: Iterable[int]) -> Plan:
        """The same plan with these channel classes removed: every layer that makes one of them drops its channel."""
        gone = frozenset(channels)
        kept = {
            layer.name: tuple(index for index in sorted(self._keeps(layer)) if layer.out_channels[index] not in gone)
            for layer in topology.layers
            if not gone.isdisjoint(layer.out_channels[index] for index in layer.deciding)
        }
        return replace(self, kept={**self.kept, **kept})

    def removed(self, topology: Topology) -> frozenset[int]:
        """The channel classes that are removed: those that can be, and that every layer which makes them drops."""
        dropped: set[int] = set()
        made: set[int] = set()
        for layer in topology.layers:
            keeps = self._keeps(layer)
            dropped.update(layer.out_channels[index] for index in layer.deciding if index not in keeps)
            made.update(layer.out_channels[index] for index in layer.deciding if index in keeps)
        return frozenset(channel for channel in dropped - made if topology.group_of(channel).removable)

    def check(self, topology: Topology) -> None:
        """Raise a ValueError that names the first difference if this plan does not fit the network."""
        required = [*topology.weight_tensors, *(activation.name for activation in topology.activations)]
        for tensor in required:
            if tensor not in self.bits:
                raise ValueError(f"the plan has no width for the tensor {tensor!r} of the network")
        for tensor in self.bits:
            if (
                tensor not in required
                and tensor not in topology.operand_tensors
                and tensor not in topology.table_tensors
            ):
                raise ValueError(f"the plan has a width for {tensor!r}, which is no tensor of the network")
        names = {layer.name for layer in topology.layers}
        for name in self.kept:
            if name not in names:
                raise ValueError(f"the plan names channels of {name!r}, which is no layer of the network")
            self._check_channels(topology.layer(name), topology)
        self._check_nothing_is_empty(topology)

    def _check_channels(self, layer: Layer, topology: Topology) -> None:
        count, keeps = len(layer.out_channels), self._keeps(layer)
        if layer.depthwise:
            raise ValueError(f"the plan names channels of {layer.name!r}: a depthwise layer follows its producers")
        if layer.followers and not layer.deciding:
            raise ValueError(f"the plan names channels of {layer.name!r}: its heads go with those of the values")
        if keeps and max(keeps) >= count:
            raise ValueError(f"the plan keeps channel {max(keeps)} of {layer.name!r}, which has {count} of them")
        if len(keeps) < count and layer.name in topology.output_layers:
            raise ValueError(f"the plan drops channels of {layer.name!r}, an output layer, which keeps all of them")
        for index, channel in enumerate(layer.out_channels):
            reason = topology.group_of(channel).reason
            if index not in keeps and reason is not None:
                raise ValueError(f"the plan drops channel {index} of {layer.name!r}, which cannot be removed: {reason}")
        self._check_heads(layer, topology)

    def _check_heads(self, layer: Layer, topology: Topology) -> None:
        keeps, first = self._keeps(layer), dict[int, int]()
        for index, channel in enumerate(layer.out_channels):
            before = first.setdefault(channel, index)
            if (before in keeps) != (index in keeps) and topology.group_of(channel).block > 1:
                raise ValueError(
                    f"the plan keeps only one of the channels {before} and {index} of {layer.name!r}, which are of one "
                    "head: it stays or goes as a whole"
                )

    def _check_nothing_is_empty(self, topology: Topology) -> None:
        removed = self.removed(topology)
        for layer in topology.layers:
            if removed.issuperset(layer.out_channels):
                raise ValueError(f"the plan removes every channel of {layer.name!r}; at least one has to stay")
            if self.bits[layer.parameter] == 0 and (not layer.deciding or self._keeps(layer)):
                raise ValueError(f"the plan gives {layer.parameter!r} 0 bits, but {layer.name!r} keeps channels")
        for tensor, width in self.bits.items():
            if width == 0 and tensor not in topology.weight_tensors:
                raise ValueError(f"the plan gives {tensor!r} 0 bits; only a weight can have 0 bits")

    def _keeps(self, layer: Layer) -> frozenset[int]:
        return frozenset(self.kept.get(layer.name, range(len(layer.out_channels))))
