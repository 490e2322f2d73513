"""Networks that several tests read, each traced once in a run."""

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import nn

from bayesbits.graph.trace import trace
from bayesbits.topology import Topology


@cache
def traced_once(make: Callable[[], nn.Module], inputs: Any) -> Topology:
    """The topology of a network."""
    return trace(make(), inputs)
