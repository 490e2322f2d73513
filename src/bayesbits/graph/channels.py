"""Which channels belong together, and which of them can be removed exactly.

Every layer makes fresh channels. They are followed through the network in running order until they reach the input
channels of other layers (`channel_labels` says how they are named, `channel_rules` how operations pass them on). A
class of channels can be removed exactly if zeros from all of its producers are still zeros at every layer that reads
them; otherwise the first obstacle on a path is the reason why not, and so is an operation that takes the factor of a
gate away, which could not learn then (see `lost_factors`). Attention heads are classes of many channels (see
`head_rules`): the zeros are those of the values, and the channels of queries and keys follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor, fx

from bayesbits.graph import channel_rules
from bayesbits.graph.channel_labels import ChannelClasses, Labels, filled, one
from bayesbits.graph.exported_program import Program, operation
from bayesbits.graph.head_rules import pass_heads
from bayesbits.graph.layer_norms import BATCH_NORMS, INSTANCE_NORM
from bayesbits.graph.layers import FoundLayer, data_of
from bayesbits.graph.lost_factors import LostFactors
from bayesbits.graph.pointwise import keeps_zero
from bayesbits.records.topology import ChannelGroup, Unsupported

TAKES_FACTORS = (
    "passes instance_norm, which takes the factor of a gate in front of it away and is no module that alone reads one "
    "layer's output"
)


@dataclass(frozen=True)
class Channels:
    """The channel classes of every layer's inputs and outputs, by the layer's name, and their groups."""

    inputs: Mapping[str, tuple[int, ...]]
    """The class of every input channel."""
    outputs: Mapping[str, tuple[int, ...]]
    """The class of every output channel."""
    groups: tuple[ChannelGroup, ...]
    """The groups of classes; see `ChannelGroup`."""
    class_of: Mapping[int, int]
    """The channel class of every atom (see `channel_labels`)."""
    followers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The output channels of each layer that follow their class, and need not be zero; see `Layer.followers`."""
    slices: Mapping[fx.Node, tuple[int, ...]] = field(default_factory=dict)
    """The channel class of every slice of the products that are computed head by head."""
    labels: Mapping[fx.Node, Labels] = field(default_factory=dict)
    """The labels of every node's output."""


def follow_channels(
    program: Program,
    layers: tuple[FoundLayer, ...],
    unsupported: Mapping[fx.Node, Unsupported],
    output_layers: tuple[str, ...],
) -> Channels:
    """Follow the channels of all layers through the network."""
    walk = ChannelWalk(program, layers, unsupported)
    walk.run()
    for layer in layers:
        if layer.name in output_layers:
            walk.classes.keep(walk.outputs[layer.name], "output layer")
    channels = number_classes(walk.classes, walk.inputs, walk.outputs, walk.consumed)
    slices = {node: tuple(channels.class_of[atom] for atom in atoms.tolist()) for node, atoms in walk.slices.items()}
    return replace(channels, labels=walk.labels, slices=slices)


class ChannelWalk:
    """Labels every node of a network, and collects the atoms of the input and output channels of every layer."""

    blocks: ClassVar[bool] = True
    """Whether channels that can only be removed in blocks are followed, those of attention heads."""
    through_instance_norms: ClassVar[bool] = True
    """Whether channels are followed through the instance norms of layers."""

    def __init__(
        self, program: Program, layers: tuple[FoundLayer, ...], unsupported: Mapping[fx.Node, Unsupported]
    ) -> None:
        self.program = program
        self.classes = ChannelClasses(blocks=self.blocks)
        self.labels: dict[fx.Node, Labels] = {}
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        self.consumed: set[int] = set()
        """The atoms that layers read; a depthwise layer only passes them on."""
        self.slices: dict[fx.Node, Tensor] = {}
        """For every product that is computed head by head an atom of each."""
        self._layer_of = {call: layer for layer in layers for call in layer.calls}
        self._own_norms = {layer.norm for layer in layers}
        self._own_instance_norms = {layer.instance_norm for layer in layers}
        self._unsupported = unsupported
        self._read: dict[tuple[fx.Node, int], Tensor] = {}
        self._lost_factors = LostFactors(self.labels, self.classes)

    def tensor(self, node: fx.Node) -> Tensor:
        return one(self.labels[node])

    def run(self) -> None:
        """Label all nodes; channels that reach the network's output stay."""
        for node in self.program.nodes:
            try:
                self.step(node)
            except Exception as error:
                place = f"{node.name}, in module {self.program.path(node)!r}"
                error.add_note(f"while the channels were followed through {place}")
                raise
        for node in self.program.nodes:
            if node in self.program.outputs:
                self.classes.keep(self.tensor(node), "reaches the network's output")

    def step(self, node: fx.Node) -> None:
        """Label one node's output."""
        if node.op == "call_function":
            self._lost_factors.follow(node)
        if node.op != "call_function":
            source = "a network input" if node in self.program.inputs else channel_rules.CONSTANT
            self.labels[node] = filled(node.meta.get("val"), self.classes.foreign(source))
        elif node in self._layer_of:
            self.labels[node] = self._pass_layer(node, self._layer_of[node])
        elif self.blocks and (found := pass_heads(node, self.labels, self.classes)) is not None:
            self.labels[node] = found if isinstance(found, Tensor) else found.labels
            self.slices |= {} if isinstance(found, Tensor) else {node: found.atoms}
        elif node in self._unsupported:
            what = self._unsupported[node].what
            self.labels[node] = channel_rules.end(
                node, self.labels, self.classes, f"feeds {what} in {self._unsupported[node].name}"
            )
        elif operation(node) in BATCH_NORMS:
            self.labels[node] = self._pass_norm(node)
        elif operation(node) == INSTANCE_NORM:
            self.labels[node] = self._pass_instance_norm(node)
        else:
            self.labels[node] = channel_rules.apply(node, self.labels, self.classes, self.passes)

    def _pass_norm(self, node: fx.Node) -> Labels:
        """A layer's own batch norm is removed with the layer's channels; any other batch norm shifts zeros."""
        labels, norm = self.tensor(node.all_input_nodes[0]), self.program.path(node)
        if norm not in self._own_norms:
            self.classes.keep(labels, f"passes batch norm {norm}, which is not one layer's own")
        return labels if isinstance(node.meta["val"], Tensor) else [labels, *filled(node.meta["val"][1:], -1)]

    def _pass_instance_norm(self, node: fx.Node) -> Labels:
        """The gate of a layer stands behind its own instance norm; any other one would take the gate's factor away."""
        data = node.all_input_nodes[0]
        if self.through_instance_norms and self.program.path(node) in self._own_instance_norms:
            return self.labels[data]
        return channel_rules.end(node, self.labels, self.classes, TAKES_FACTORS)

    def _pass_layer(self, node: fx.Node, layer: FoundLayer) -> Tensor:
        """Read the input channels of a layer, and label its output with the layer's own channels."""
        rank = node.meta["val"].dim()
        spatial = 0 if layer.kind == "linear" else len(layer.weight_shape) - 2
        dim = rank - 1 - spatial
        arrived = self._arrived(data_of(node), dim)
        first = self.inputs.setdefault(layer.name, arrived)
        self.classes.unite(first, arrived)  # a second call: its channels meet the same weights
        made = self.outputs.get(layer.name)
        if made is None:
            made = self.outputs[layer.name] = self.classes.new(layer.outputs)
        self.consumed.update(() if layer.depthwise else arrived.tolist())
        self.couple(layer, first, made)
        return made.reshape(-1, *[1] * spatial).expand(tuple(node.meta["val"].shape))

    def _arrived(self, node: fx.Node, dim: int) -> Tensor:
        """One atom per input channel; layers that read the same tensor read the same atoms."""
        if (node, dim) not in self._read:
            self._read[node, dim] = self.classes.columns(self.tensor(node), dim)
        return self._read[node, dim]

    def passes(self, node: fx.Node, operands: Sequence[fx.Node], foreign: Sequence[bool]) -> bool:
        """Whether a pointwise operation passes channels on."""
        return keeps_zero(node, operands, foreign)

    def couple(self, layer: FoundLayer, arrived: Tensor, made: Tensor) -> None:
        """Unite or keep the channels of a layer where the layer itself demands it."""
        if layer.depthwise:
            self.classes.unite(arrived, made)
        elif layer.groups > 1:  # cutting single channels would leave groups of unequal size
            self.classes.keep(arrived, f"feeds grouped convolution {layer.name}")
            self.classes.keep(made, f"grouped convolution {layer.name}")
        if layer.shared_weight:
            for atoms in (arrived, made):
                self.classes.keep(atoms, f"tied weights ({layer.parameter})")


def number_classes(
    classes: ChannelClasses, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor], consumed: Iterable[int] = ()
) -> Channels:
    """Number the classes so that those with the same producers, consumers and reason follow each other.

    `consumed` are the atoms that have to be zero where their class is removed, if it is a block.
    """
    roots = {
        side: {name: [classes.find(atom) for atom in atoms.tolist()] for name, atoms in ends.items()}
        for side, ends in (("in", inputs), ("out", outputs))
    }
    readers, makers = _names_by_root(roots["in"]), _names_by_root(roots["out"])
    followers = _followers(classes, outputs, consumed)
    blocks = _blocks(classes, roots["out"], followers)
    members: dict[tuple[tuple[str, ...], tuple[str, ...], str | None, tuple[str, int] | None], dict[int, None]] = {}
    for name in inputs:
        for root in roots["in"][name] + roots["out"][name]:
            producers, consumers = tuple(makers.get(root, ())), tuple(readers.get(root, ()))
            reason = classes.reason(root) or (None if producers else "no layer makes these channels")
            members.setdefault((producers, consumers, reason, blocks.get(root)), {})[root] = None
    numbers: dict[int, int] = {}
    groups: list[ChannelGroup] = []
    names: dict[str, int] = {}
    for (producers, consumers, reason, block), found in members.items():
        name, size = block or (producers[0] if producers else f"input of {consumers[0]}", 1)
        names[name] = names.get(name, 0) + 1
        name += f"#{names[name]}" if names[name] > 1 else ""
        if size > 1 and len(found) == 1:
            reason = reason or "they are those of one head, or of all heads together"
        groups.append(ChannelGroup(name, len(numbers), len(found), producers, consumers, reason, size))
        numbers.update({root: len(numbers) + index for index, root in enumerate(found)})
    sides = [
        {name: tuple(numbers[root] for root in ends) for name, ends in roots[side].items()} for side in ("in", "out")
    ]
    class_of = {atom: numbers[root] for atom in range(classes.atoms) if (root := classes.find(atom)) in numbers}
    return Channels(sides[0], sides[1], tuple(groups), class_of, followers)


def _followers(
    classes: ChannelClasses, outputs: Mapping[str, Tensor], consumed: Iterable[int]
) -> dict[str, tuple[int, ...]]:
    """The output channels of blocks that no layer reads, by the layer's name: queries and keys."""
    blocks, read = classes.block_roots(), {classes.find_zero(atom) for atom in consumed}
    found = {
        name: tuple(
            index
            for index, atom in enumerate(atoms.tolist())
            if classes.find(atom) in blocks and classes.find_zero(atom) not in read
        )
        for name, atoms in outputs.items()
    }
    return {name: indices for name, indices in found.items() if indices}


def _blocks(
    classes: ChannelClasses, outputs: Mapping[str, list[int]], followers: Mapping[str, tuple[int, ...]]
) -> dict[int, tuple[str, int]]:
    """For every block the first layer that has to make zeros of it, and the number of its channels there."""
    found: dict[int, tuple[str, int]] = {}
    roots = classes.block_roots()
    for name, made in outputs.items():
        following = set(followers.get(name, ()))
        counts = Counter(root for index, root in enumerate(made) if index not in following and root in roots)
        found = {root: (name, count) for root, count in counts.items()} | found
    return found


def _names_by_root(ends: Mapping[str, list[int]]) -> dict[int, dict[str, None]]:
    """For every class the layers that have it among these channels, in running order and once each."""
    names: dict[int, dict[str, None]] = {}
    for name, roots in ends.items():
        for root in roots:
            names.setdefault(root, {})[name] = None
    return names
