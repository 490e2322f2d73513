"""The object that all passes take and change: the exported float network, the decision about it, and what passes found.

torch.export gives a graph for inputs of many sizes, which are symbols. Reading channels needs numbers. So the
graph has a twin with the sizes of the example inputs, node by node. The twin is read and never changed; `node_of` leads
from its nodes to those of the graph that is rewritten.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, fx

from bayesbits.deploy.decision import Decision
from bayesbits.deploy.modules import FloatTensors
from bayesbits.graph.dynamic_shapes import DynamicExport
from bayesbits.graph.exported_program import Program
from bayesbits.graph.trace import Reading
from bayesbits.records.integer_network import Argument, IntegerNetwork
from bayesbits.records.topology import Layer, Product
from bayesbits.utils.pytree import Tree


@dataclass(frozen=True)
class Geometry:
    """How a convolution moves over its input; empty for linear layers."""

    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()


@dataclass(frozen=True)
class EmittedCodes:
    """The codes that a layer emits: on which grid, and between which bounds."""

    grid: str
    low: int
    high: int


@dataclass
class LayerNode:
    """A layer of the graph: its calls, and what the passes found out about it."""

    layer: Layer
    geometry: Geometry
    calls: list[fx.Node]
    """One node of the graph for each time that the layer runs."""
    float_reason: str | None = None
    """Why the layer computes in float; None where it computes in integers. Written by `choose_arithmetic`."""
    dynamic: bool = False
    """Whether the input is quantized at run time, by its own range. Written by `choose_arithmetic`."""
    emits: EmittedCodes | None = None
    """The codes that the layer emits; None where it emits numbers. Written by `fuse_quantizers`."""


@dataclass
class ProductNode:
    """A product of two activations in the graph, of which at least one is quantized."""

    product: Product
    calls: list[fx.Node] = field(default_factory=list)
    """One node of the graph for each time that it runs; its arguments are the two operands."""
    float_reason: str | None = None
    """Why it computes in float; None where it computes in integers. Written by `choose_arithmetic`."""
    emits: EmittedCodes | None = None
    """The codes that it emits; None where it emits numbers. Written by `fuse_quantizers`."""


@dataclass
class RewrittenProgram:
    """The exported float network while the passes rewrite it."""

    decision: Decision
    """What was decided about the network; passes only read it."""
    graph: fx.Graph
    """The graph that the passes rewrite. Placeholders are the user's inputs, get_attr nodes read `floats`."""
    floats: FloatTensors
    takes: tuple[Argument, ...]
    returns: Tree
    examples: tuple[Tensor, ...]
    dynamic: DynamicExport
    """The export that the graph was made from: which sizes of the inputs may change, and why others may not."""
    twin: Program
    """The graph as it was exported, with the sizes of the example inputs."""
    reading: Reading
    """The layers, channels and additions that were read in the twin."""
    node_of: dict[fx.Node, fx.Node]
    """For every node of the twin the node of the graph that computes the same tensor."""
    layers: list[LayerNode] = field(default_factory=list)
    """The layers in running order. Written by `fold_batch_norm`."""
    products: list[ProductNode] = field(default_factory=list)
    """The products of two activations in running order. Written by `expose_products`."""
    record: IntegerNetwork | None = None
    """The final integers. Written by `write_record`."""

    def twins(self) -> dict[fx.Node, fx.Node]:
        """For nodes of the graph the nodes of the twin."""
        return {node: twin for twin, node in self.node_of.items()}

    def erase_unread(self) -> None:
        """Erase every node whose result nothing reads."""
        for node in reversed(self.graph.nodes):
            if node.op not in ("placeholder", "output") and not node.users:
                self.graph.erase_node(node)
