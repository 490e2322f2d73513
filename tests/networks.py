"""Networks that several tests read, each traced once in a run."""

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import nn

from bayesbits.graph.trace import trace
from bayesbits.plan import Plan
from bayesbits.topology import Topology


@cache
def traced_once(make: Callable[[], nn.Module], inputs: Any) -> Topology:
    """The topology of a network."""
    return trace(make(), inputs)


def dropping(topology: Topology, fraction: float, bits: int = 8) -> Plan:
    """A plan in which every layer that makes a removable group drops this fraction of it, from its end."""
    removed = {
        channel
        for group in topology.removable_groups
        for channel in group.channels[group.size - int(group.size * fraction) :]
    }
    kept = {
        layer.name: tuple(index for index, channel in enumerate(layer.out_channels) if channel not in removed)
        for layer in topology.layers
        if not layer.depthwise and not removed.isdisjoint(layer.out_channels)
    }
    return Plan(Plan.uniform(topology, bits, bits).bits, kept)
