"""A network with quantizers and channel gates, made by hand, for the penalties."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayesbits.compression.penalties import make_penalty
from bayesbits.compression.penalty_base import Penalty
from bayesbits.graph.trace import trace
from bayesbits.nn import ChannelGate, GatedQuantizer
from bayesbits.records.topology import Topology
from tests.graph.networks import OWN, traced
from tests.latency_tables import made_up_table
from tests.networks import zoo

FIRST, SECOND = 4 * 3, 2 * 4  # the MACs of the two layers


@cache
def two_layers() -> Topology:
    """Linear 3 -> 4 -> 2, whose tensors are 0.weight, 0.input, 2.weight and 2.input."""
    return trace(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.ones(1, 3))


def topology(name: str) -> Topology:
    return traced(name)[2] if name in OWN else zoo(name)


class Gated(nn.Module):
    """Quantizers for all tensors of a network and gates for the channels of its layers, with random logits."""

    def __init__(
        self,
        network: Topology,
        bits: tuple[int, ...] = (2, 4, 8),
        prune: bool = True,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        unsigned = [*network.operand_tensors, *(activation.name for activation in network.activations)]
        tensors = dict.fromkeys(network.weight_tensors, True) | dict.fromkeys(unsigned, False)
        self.network = network
        self.quantizers = {name: GatedQuantizer(signed=signed, bits=bits) for name, signed in tensors.items()}
        self.channels = {
            layer.name: ChannelGate(len(layer.out_channels))
            for layer in network.layers
            if prune and not layer.depthwise and layer.name not in network.output_layers
        }
        self.owners = nn.ModuleList([*self.quantizers.values(), *self.channels.values()]).to(dtype)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for logits in self.logits():
                logits.copy_(torch.randn(logits.shape, generator=generator) * 2)

    def logits(self) -> list[Tensor]:
        return [owner.gates.logits for owner in self.owners if owner.gates.logits.numel()]

    def penalty(self, kind: str = "paper", **options: Any) -> Penalty:
        if kind == "expected_latency":
            options.setdefault("table", made_up_table(self.network))
        return make_penalty(self.network, self.quantizers, self.channels, kind, **options)

    def on(self, name: str) -> Any:
        """P(z > 0) of a quantizer's or of a layer's gates, as numbers."""
        owner = {**self.quantizers, **self.channels}[name]
        return owner.gates.probability_on().tolist()


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def close(actual: Tensor, expected: float) -> bool:
    assert actual.shape == ()
    return actual.item() == pytest.approx(expected, rel=1e-9)
