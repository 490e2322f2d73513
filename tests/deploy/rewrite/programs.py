"""Programs of a few nodes for the tests of single passes."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from torch import fx

from bayesbits.deploy.modules import FloatTensors
from bayesbits.deploy.rewrite.program import RewrittenProgram
from bayesbits.records.integer_network import Grid


def program_of(
    graph: fx.Graph, *, grids: Iterable[Grid] = (), zero: Iterable[str] = (), **parts: Any
) -> RewrittenProgram:
    """A program of this graph without layers, whose decision has these grids and layers without bits."""
    names = set(zero)
    decision: Any = SimpleNamespace(grids={grid.name: grid for grid in grids}, is_zero=lambda name: name in names)
    nothing: Any = None
    fields = {"takes": (), "returns": nothing, "examples": (), "dynamic": nothing, "twin": nothing, "reading": nothing}
    fields |= {"node_of": {node: node for node in graph.nodes}} | parts
    return RewrittenProgram(decision, graph, FloatTensors(), **fields)
