"""The milliseconds of all widths of a network as sums of parts, for methods that choose the widths of many tensors.

    layers = sum over layers l of layer_ms[l; weight, input and emitted tensor above 8 bits or not]
    overhead = sum over layers l of overhead_ms[l; kind of the input]
    latency = max(layers + overhead, half of layers)

The numbers of channels are those of one plan. It is the formula of `cost.latency`, taken apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from bayesbits.cost.bops import CostModel
from bayesbits.cost.latency import MOST_SAVED
from bayesbits.records.latency_table import KINDS, NARROW_BITS, LatencyTable, kind_of
from bayesbits.records.plan import FLOAT_BITS, Plan


@dataclass(frozen=True)
class LatencyParts:
    """The parts of the milliseconds of a network with the channels of one plan."""

    tensors: tuple[tuple[str, str, str | None], ...]
    """The weight of every layer, its input, and the tensor whose codes it emits."""
    layers: Tensor
    """[weight above 8 bits, input above 8 bits, emitted tensor above 8 bits, layers]: milliseconds."""
    overheads: Tensor
    """[kinds, layers]: the part of the overhead that the input of a layer has, by its kind."""

    @classmethod
    def of(cls, model: CostModel, table: LatencyTable, plan: Plan, *, more_channels: bool = False) -> LatencyParts:
        """With the channels of a plan; a layer that it removes takes no time.

        With `more_channels` the overheads are the least that they can be with these channels or more.
        """
        latency = model.latency_model(table)
        inputs, outputs = model.channel_counts(plan)
        present = inputs.new_tensor([float(plan.bits[layer.parameter] > 0) for layer in model.topology.layers])
        flags = [inputs.new_full((len(present),), float(flag)) for flag in (False, True)]
        times = [
            present * latency.form_ms(weight, activation, emitted, inputs, outputs)
            for weight, activation, emitted in product(flags, flags, flags)
        ]
        overheads = latency.least_overheads(inputs) if more_channels else latency.kind_overheads(inputs)
        return cls(
            latency.tensors, torch.stack(times).reshape(2, 2, 2, -1).cpu(), (overheads[:, None] * latency.part).cpu()
        )

    def layer_ms(self, layer: int, weight: int, activation: int, emitted: int) -> float:
        """The milliseconds of one layer with tensors of these widths."""
        over = (int(bits > NARROW_BITS) for bits in (weight, activation, emitted))
        return self.layers[(*over, layer)].item()

    def overhead_ms(self, layer: int, activation: int) -> float:
        """What the input of one layer adds to the overhead with this width."""
        return self.overheads[KINDS.index(kind_of(activation)), layer].item()

    @staticmethod
    def total_ms(layers: float, overhead: float) -> float:
        """The milliseconds of a network from the sums of its parts."""
        return max(layers + overhead, (1 - MOST_SAVED) * layers)


def width_in(bits: dict[str, int], name: str | None) -> int:
    """The width of a tensor; one that is not named is in float."""
    return FLOAT_BITS if name is None else bits.get(name, FLOAT_BITS)
