"""The paths between layers: the operations on them, and the channels that pass a positive factor on.

The methods that change weights without training need more than a `Topology` says. Cross-layer equalization moves a
factor from a layer's output channels to the input channels of the next layer. Adaptive rounding compares outputs after
the nonlinearity. Bias correction without data needs the statistics of the batch norm before a layer. All of them read
the exported graph here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from bayesbits.graph.channels import Channels, ChannelWalk, number_classes
from bayesbits.graph.exported_program import Program, export, operation
from bayesbits.graph.layer_norms import BATCH_NORMS
from bayesbits.graph.layers import FoundLayer, find_layers, find_unsupported, layer_input
from bayesbits.graph.pointwise import is_function, passes_factor
from bayesbits.utils.batches import split_inputs


@dataclass(frozen=True)
class LayerPath:
    """The operations from a layer, after its own batch norm, to a layer that reads it, where no branch lies between."""

    producer: str
    """The layer that the path starts from."""
    operations: tuple[fx.Node, ...]
    """The operations on the path, in running order."""


class LayerPaths:
    """The layers of a network, and the paths between them."""

    def __init__(self, program: Program) -> None:
        self._program, self.model = program, program.model
        self.layers = {layer.name: layer for layer in find_layers(program)}
        norms = {layer.norm: layer.name for layer in self.layers.values() if layer.norm is not None}
        self._ends = {call: layer.name for layer in self.layers.values() for call in layer.calls if layer.norm is None}
        for node in program.nodes:
            if operation(node) in BATCH_NORMS and program.path(node) in norms:
                self._ends[_first(node)] = norms[program.path(node)]

    def scalable_channels(self) -> Channels:
        """The channels of all layers; the groups without a reason are those on which every path passes a factor on.

        Unlike in a `Topology`, the output channels of a depthwise layer are not the classes of its input channels.
        """
        layers = tuple(self.layers.values())
        walk = _ScalingWalk(self._program, layers, find_unsupported(self._program, layers))
        walk.run()
        return number_classes(walk.classes, walk.inputs, walk.outputs)

    def functions_after(self, name: str) -> tuple[fx.Node, ...]:
        """The pointwise operations that follow a layer and its batch norm, up to the first tensor with another reader.

        They are none for a layer that runs several times and is followed by different operations.
        """
        found = [self._functions_after(node) for node, layer in self._ends.items() if layer == name]
        alike = {tuple(str((node.target, node.args[1:], node.kwargs)) for node in nodes) for nodes in found}
        return found[0] if len(alike) == 1 else ()

    def modules_after(self, name: str) -> tuple[str, ...]:
        """The modules of the pointwise operations that follow a layer and its batch norm, as in `functions_after`."""
        return tuple(self._program.path(node) for node in self.functions_after(name))

    def calls_of(self, module: str) -> int:
        """How often a module runs in one forward pass."""
        return self._program.calls_of.get(module, 0)

    def _functions_after(self, node: fx.Node) -> tuple[fx.Node, ...]:
        nodes: list[fx.Node] = []
        while node not in self._program.outputs:
            readers = [user for user in node.users if user.users or user in self._program.outputs]
            if len(readers) != 1 or not is_function(readers[0]):
                break
            node = readers[0]
            nodes.append(node)
        return tuple(nodes)

    def path_to(self, name: str) -> LayerPath | None:
        """The path to a layer; None where several tensors meet on it, or where the layer runs several times."""
        layer = self.layers[name]
        if len(layer.calls) != 1:
            return None
        node, nodes = layer_input(self._program, layer.calls[0]), []
        while node not in self._ends:
            if node.op != "call_function" or len(node.all_input_nodes) != 1:
                return None
            nodes.append(node)
            node = node.all_input_nodes[0]
        return LayerPath(self._ends[node], tuple(reversed(nodes)))


class _ScalingWalk(ChannelWalk):
    """Follows channels through operations that pass a positive factor on; the softmax between heads is none."""

    blocks = False
    through_instance_norms = False

    def passes(self, node: fx.Node, operands: Sequence[fx.Node], foreign: Sequence[bool]) -> bool:
        """Whether the operation passes a positive factor of the channels on."""
        return passes_factor(node, operands, foreign)

    def couple(self, layer: FoundLayer, arrived: Tensor, made: Tensor) -> None:
        """Keep the channels of tied weights; elsewhere the factors of inputs and outputs are independent."""
        if layer.shared_weight:
            for atoms in (arrived, made):
                self.classes.keep(atoms, f"tied weights ({layer.parameter})")


def read_layer_paths(model: nn.Module, example_inputs: Any) -> LayerPaths:
    """Read the paths between the layers of a float network; raises what torch.export raises."""
    return LayerPaths(export(model, *split_inputs(example_inputs)))


def _first(node: fx.Node) -> fx.Node:
    """The first of the tensors that a node makes; some forms of batch norm make three."""
    if isinstance(node.meta["val"], Tensor):
        return node
    return next(user for user in node.users if operation(user) == "getitem" and user.args[1] == 0)
