"""The parts of a `Topology` that its cost depends on, as tensors of integers; `CostModel` says what each one is.

The vector of all gates holds one for every output channel of every layer that is not depthwise, in the order of the
layers, followed by a zero (which pads lists of gates) and a one (for channels that always stay).
"""

from __future__ import annotations

from collections import Counter
from math import prod

import torch
from torch import Tensor

from bayesbits.cost.size import bias_elements
from bayesbits.records.topology import Product, Topology, Unsupported


def cost_indices(topology: Topology) -> dict[str, Tensor]:
    """The buffers of a `CostModel`, by name."""
    layers = topology.layers
    makers, gates = _makers(topology)
    zero, one = gates, gates + 1
    stays = [one]
    deciding = [
        makers[channel] or stays if topology.group_of(channel).removable else stays
        for channel in range(topology.channels)
    ]
    rows = 1 << (max(map(len, deciding)) - 1).bit_length()
    padded = [gate + [zero] * (rows - len(gate)) for gate in deciding]
    reads, makes, bundle_of = _bundles(topology)
    joined = [any(len(makers[channel]) > 1 for channel in layer.in_channels) for layer in layers]
    return {
        "reads": reads,
        "makes": makes,
        "bundle_of": bundle_of,
        "producers": torch.tensor(padded).T.contiguous(),
        "own": torch.tensor(_own_gates(topology, deciding, one)),
        "layer_of": torch.tensor([index for index, layer in enumerate(layers) for _ in layer.out_channels]),
        "joined": torch.tensor(joined),
        "depthwise": torch.tensor([layer.depthwise for layer in layers]),
        "inputs": torch.tensor([len(layer.in_channels) for layer in layers]),
        "outputs": torch.tensor([len(layer.out_channels) for layer in layers]),
        "macs": torch.tensor([layer.macs for layer in layers]),
        **_weight_sizes(topology),
        **_slices(topology),
        "zero_and_one": torch.tensor([0, 1]),
    }


def _slices(topology: Topology) -> dict[str, Tensor]:
    """The buffers from which the part of each product that is left is computed, where its heads can go."""
    entries: tuple[Product | Unsupported, ...] = (*topology.products, *topology.unsupported)
    classes = sorted({channel for entry in entries for channel in entry.slices})
    position = {channel: index for index, channel in enumerate(classes)}
    counts = torch.zeros(len(entries), len(classes) + 1, dtype=torch.int64)
    for row, entry in zip(counts, entries, strict=True):
        row[-1] = int(not entry.slices)  # all of it stays
        for channel in entry.slices:
            row[position[channel]] += 1
    return {"heads": torch.tensor(classes, dtype=torch.int64), "head_counts": counts}


def _weight_sizes(topology: Topology) -> dict[str, Tensor]:
    """The buffers from which the bytes of the weights are computed."""
    layers = topology.layers
    pairs = [len(layer.out_channels) * (1 if layer.depthwise else len(layer.in_channels)) for layer in layers]
    first = {tied[0] for tied in topology.weight_tensors.values()}
    elements = [prod(layer.weight_shape) if layer.name in first else 0 for layer in layers]
    return {
        "pair_elements": torch.tensor(elements, dtype=torch.float64) / torch.tensor(pairs),
        "all_pairs": torch.tensor(pairs),
        "weight_stays": torch.tensor([layer.groups > 1 and not layer.depthwise for layer in layers]),
        "has_bias": torch.tensor([bias_elements(layer, 1) for layer in layers]),
    }


def _makers(topology: Topology) -> tuple[list[list[int]], int]:
    """For every channel class the gates of the channels that make it, and how many gates there are.

    The channels of a head have one gate in a layer, of which the first channel stands for all.
    """
    makers: list[list[int]] = [[] for _ in range(topology.channels)]
    gates = 0
    for layer in topology.layers:
        if not layer.depthwise:
            seen: set[int] = set()
            for index in layer.deciding:
                channel = layer.out_channels[index]
                if topology.group_of(channel).block == 1 or channel not in seen:
                    makers[channel].append(gates + index)
                seen.add(channel)
            gates += len(layer.out_channels)
    return makers, gates


def _own_gates(topology: Topology, deciding: list[list[int]], one: int) -> list[int]:
    """The gate of every output channel: the layer's own, or for those that follow the only one, or a one."""
    own, gates = [], 0
    for layer in topology.layers:
        decides = frozenset(layer.deciding)
        for index, channel in enumerate(layer.out_channels):
            if index not in decides:
                own.append(deciding[channel][0] if len(deciding[channel]) == 1 else one)
            else:
                own.append(gates + index if topology.group_of(channel).removable else one)
        gates += 0 if layer.depthwise else len(layer.out_channels)
    return own


def _bundles(topology: Topology) -> tuple[Tensor, Tensor, Tensor]:
    """Bundle the classes that appear equally often among the inputs and outputs of every layer.

    Returns how often each layer reads and makes a class of each bundle, and the bundle of every class.
    """
    appears: list[list[tuple[int, int, int]]] = [[] for _ in range(topology.channels)]
    for index, layer in enumerate(topology.layers):
        for side, channels in enumerate((layer.in_channels, layer.out_channels)):
            for channel, count in Counter(channels).items():
                appears[channel].append((side, index, count))
    numbers: dict[tuple[tuple[int, int, int], ...], int] = {}
    bundle_of = torch.tensor([numbers.setdefault(tuple(places), len(numbers)) for places in appears])
    ends = torch.zeros(2, len(topology.layers), len(numbers), dtype=torch.int64)
    for places, bundle in numbers.items():
        for side, index, count in places:
            ends[side, index, bundle] = count
    return ends[0], ends[1], bundle_of
