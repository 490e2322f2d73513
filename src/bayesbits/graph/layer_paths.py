"""What lies between two layers: functions of every element, and channels that a factor passes unchanged.

The methods that change weights without training need more than a `Topology` says. Equalization moves a factor from a
layer's output channels to the input channels of the next; rounding by a layer's output looks behind its nonlinearity;
a bias without data comes from the statistics of the batch norm before. All of them read the exported graph here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from bayesbits.graph.channels import Channels, Walk, number
from bayesbits.graph.elementwise_rules import is_elementwise, passes_factor
from bayesbits.graph.exported_program import Program, export, is_float, operation
from bayesbits.graph.layers import BATCH_NORMS, FoundLayer, find_layers, find_unsupported, layer_input
from bayesbits.utils.batches import split_inputs


@dataclass(frozen=True)
class Way:
    """The way from a layer, its own batch norm included, to one that reads it, with no branch in between."""

    producer: str
    """The layer that it starts from."""
    operations: tuple[fx.Node, ...]
    """What lies on it, in running order."""


class Between:
    """What lies between the layers of a network."""

    def __init__(self, program: Program) -> None:
        self._program, self.model = program, program.model
        self.layers = {layer.name: layer for layer in find_layers(program)}
        norms = {layer.norm: layer.name for layer in self.layers.values() if layer.norm is not None}
        self._ends = {call: layer.name for layer in self.layers.values() for call in layer.calls if layer.norm is None}
        for node in program.nodes:
            if operation(node) in BATCH_NORMS and program.path(node) in norms:
                self._ends[_first(node)] = norms[program.path(node)]

    def scalable_channels(self) -> Channels:
        """The channels of all layers; the groups without a reason are those that a positive factor passes unchanged.

        Unlike in a `Topology`, what comes out of a depthwise layer is not what went in.
        """
        layers = tuple(self.layers.values())
        walk = _ScalingWalk(self._program, layers, find_unsupported(self._program, layers))
        walk.go()
        return number(walk.classes, walk.inputs, walk.outputs)

    def functions_behind(self, name: str) -> tuple[fx.Node, ...]:
        """The functions of every element that follow a layer and its batch norm, as far as nothing else reads between.

        None of them for a layer that runs several times and is followed by different ones.
        """
        found = [self._functions_behind(node) for node, layer in self._ends.items() if layer == name]
        alike = {tuple(str((node.target, node.args[1:], node.kwargs)) for node in nodes) for nodes in found}
        return found[0] if len(alike) == 1 else ()

    def _functions_behind(self, node: fx.Node) -> tuple[fx.Node, ...]:
        nodes: list[fx.Node] = []
        while node not in self._program.outputs:
            readers = [user for user in node.users if user.users or user in self._program.outputs]
            if len(readers) != 1 or not is_function(readers[0]):
                break
            node = readers[0]
            nodes.append(node)
        return tuple(nodes)

    def way_to(self, name: str) -> Way | None:
        """The way to a layer; None where several tensors meet on it, or where it runs several times."""
        layer = self.layers[name]
        if len(layer.calls) != 1:
            return None
        node, nodes = layer_input(self._program, layer.calls[0]), []
        while node not in self._ends:
            if node.op != "call_function" or len(node.all_input_nodes) != 1:
                return None
            nodes.append(node)
            node = node.all_input_nodes[0]
        return Way(self._ends[node], tuple(reversed(nodes)))


class _ScalingWalk(Walk):
    """Follows channels through what passes a positive factor on."""

    def passes(self, node: fx.Node, operands: Sequence[fx.Node], foreign: Sequence[bool]) -> bool:
        """Whether a factor of the channels comes out as it went in."""
        return passes_factor(node, operands, foreign)

    def couple(self, layer: FoundLayer, arrived: Tensor, made: Tensor) -> None:
        """Factors of inputs and outputs are independent of each other, in groups too; tied weights would need both."""
        if layer.shared_weight:
            for atoms in (arrived, made):
                self.classes.keep(atoms, f"tied weights ({layer.parameter})")


def read_between(model: nn.Module, example_inputs: Any) -> Between:
    """Read what lies between the layers of a float network; raises what torch.export raises where it cannot."""
    return Between(export(model, *split_inputs(example_inputs)))


def is_function(node: fx.Node) -> bool:
    """Whether a node is a function of every element of one tensor, and of nothing else."""
    return (
        node.op == "call_function"
        and len(node.all_input_nodes) == 1
        and is_elementwise(node, operation(node))
        and is_float(node)
        and is_float(node.all_input_nodes[0])
        and isinstance(node.args[0], fx.Node)
        and not any(isinstance(value, fx.Node) for value in (*node.args[1:], *node.kwargs.values()))
    )


def apply_functions(nodes: Sequence[fx.Node], x: Tensor) -> Tensor:
    """What functions of every element make of a tensor, one after the other."""
    for node in nodes:
        target: Any = node.target
        x = target(x, *node.args[1:], **node.kwargs)
    return x


def _first(node: fx.Node) -> fx.Node:
    """The first of the tensors that a node makes; some forms of batch norm make three."""
    if isinstance(node.meta["val"], Tensor):
        return node
    return next(user for user in node.users if operation(user) == "getitem" and user.args[1] == 0)
