"""Finding the convolutions whose outputs float operations read, and where an output quantizer lets them emit codes.

A layer emits codes if the quantizer that reads its output can move in front of everything between the two (see
`operations`): the quantizer of the next layer's input, or of an operand of an addition. Where a float operation is in
between (SiLU, a batch norm of its own, a concatenation with something else), a convolution needs a quantizer of its own
to run in the runtime's fast kernel. A linear layer needs none: it emits numbers as fast as codes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Any

from torch import fx

from bayesbits.graph.exported_program import Program, is_float, operation
from bayesbits.graph.hard_swish import SHIFT, only_hard_swish_reads
from bayesbits.graph.layer_norms import BATCH_NORMS
from bayesbits.graph.layers import FoundLayer, layer_input
from bayesbits.graph.operations import CLIPS, clip_bounds, moved_tensor, moves_values
from bayesbits.graph.residual import module_output
from bayesbits.records.topology import Clip


def find_emitted(
    program: Program,
    layers: Sequence[FoundLayer],
    outputs: Collection[str],
    operands: Mapping[str, fx.Node],
    multiplied: Mapping[fx.Node, fx.Node],
) -> dict[str, fx.Node]:
    """The tensors, named "module.output", that are to be quantized so that the layers in front of them emit codes.

    Args:
        program: The network.
        layers: Its layers.
        outputs: The layers whose output reaches the network's output without another layer between; they keep their
            precision.
        operands: The operands of residual additions by name, which have quantizers already.
        multiplied: The operands of products of two activations, which have quantizers as well, with their readers.
    """
    search = OutputSearch(program, layers, operands, multiplied)
    emitted = {}
    for layer in layers:
        if layer.kind == "conv" and layer.name not in outputs and len(layer.calls) == 1:
            found = search.place(search.output_of(layer))
            if found is not None:
                emitted[f"{found[0]}.output"] = found[1]
    return emitted


def find_clips(program: Program, emitted: Mapping[str, fx.Node]) -> tuple[Clip, ...]:
    """The emitted tensors that are read through clipping functions alone, moved or not, with their bounds.

    Such a function is no module of its own, or one that is called several times, so that the quantizer stands in front
    of it. A range without the values that it takes away loses nothing.
    """
    clips = []
    for name, node in emitted.items():
        low, high = -inf, inf
        while (after := _only_reader(program, node)) is not None and _changes_places(after):
            if operation(after) in CLIPS and (bounds := clip_bounds(after)) is not None:
                low, high = max(low, bounds[0]), min(high, bounds[1])
            node = after
        low = max(low, -SHIFT) if only_hard_swish_reads(node) else low
        if (low, high) != (-inf, inf):
            clips.append(Clip(name, None if low == -inf else low, None if high == inf else high))
    return tuple(clips)


def find_hard_swishes(emitted: Mapping[str, fx.Node]) -> tuple[str, ...]:
    """The emitted tensors that a hard-swish alone reads."""
    return tuple(name for name, node in emitted.items() if only_hard_swish_reads(node))


def find_shared_ranges(
    emitted: Collection[str],
    operands: Mapping[str, fx.Node],
    activations: Mapping[str, Collection[fx.Node]],
    clips: Iterable[Clip],
) -> tuple[tuple[str, ...], ...]:
    """The tensors that are best quantized with one range, each family with at least one of `emitted` in it.

    They are an emitted tensor with the input of the layers that read it, and the parts of a concatenation with the
    tensor that it makes, or with a part of that. On equal grids neither is rounded twice, and codes are moved and
    concatenated as they are.

    Args:
        emitted: The names of the emitted tensors.
        operands: The nodes of all operands with quantizers, the emitted ones included, by name.
        activations: The nodes of the tensors that layers read, by the name of the activation.
        clips: The clipping functions behind emitted tensors, which take nothing away from what they emit.
    """
    name_of = {node: name for name, node in operands.items()}
    names: dict[fx.Node, set[str]] = {}
    for name, nodes in (*activations.items(), *((name, (node,)) for name, node in operands.items())):
        for node in nodes:
            names.setdefault(node, set()).add(name)
    origins = Origins(name_of, {clip.tensor for clip in clips})
    families: list[set[str]] = []
    for node, found in names.items():
        parts = found | (origins.of_inputs(node) or set())
        for other in [family for family in families if family & parts]:
            families.remove(other)
            parts |= other
        families.append(parts)
    return tuple(tuple(sorted(family)) for family in families if len(family) > 1 and family.intersection(emitted))


def find_origins(program: Program, operands: Mapping[str, fx.Node], emitted: Mapping[str, fx.Node]) -> Origins:
    """The quantized tensors, emitted or operands of additions, that others are made of."""
    clipped = {clip.tensor for clip in find_clips(program, emitted)}
    return Origins({node: name for name, node in (*operands.items(), *emitted.items())}, clipped)


class Origins:
    """The quantized tensors that others hold the values of, moved and concatenated."""

    def __init__(self, name_of: Mapping[fx.Node, str], clipped: Collection[str]) -> None:
        self.name_of, self.clipped = name_of, clipped
        self._found: dict[fx.Node, set[str] | None] = {}

    def of(self, node: fx.Node) -> set[str] | None:
        """Their names; None where there are other values in a tensor."""
        if node in self.name_of:
            return {self.name_of[node]}
        if node not in self._found:
            self._found[node] = self.of_inputs(node)
        return self._found[node]

    def of_inputs(self, node: fx.Node) -> set[str] | None:
        """The same for what a node moves, concatenates or clips."""
        if operation(node) == "cat":
            joined: Any = node.args[0]
            parts = [self.of(part) for part in joined]
            return None if None in parts else {name for part in parts if part is not None for name in part}
        if operation(node) in CLIPS:
            names = self.of(node.all_input_nodes[0])
            return names if names is not None and names.issubset(self.clipped) else None
        source = moved_tensor(node)
        return None if source is None else self.of(source)


class OutputSearch:
    """The search for the places of output quantizers, among layers and the tensors that have quantizers."""

    def __init__(
        self,
        program: Program,
        layers: Sequence[FoundLayer],
        operands: Mapping[str, fx.Node],
        multiplied: Mapping[fx.Node, fx.Node],
    ) -> None:
        self.program = program
        self.layer_outputs = {self.output_of(layer) for layer in layers if len(layer.calls) == 1}
        self.quantized = set(operands.values())
        self.readers = {node: {reader} for node, reader in multiplied.items()}
        for call in (call for layer in layers for call in layer.calls):
            inside = layer_input(program, call)
            self.readers.setdefault(inside, set()).update(user for user in inside.users if _leads_to(user, call))

    def output_of(self, layer: FoundLayer) -> fx.Node:
        """The tensor that a layer makes, after the batch norm that is folded into it."""
        call = layer.calls[0]
        if layer.norm is None:
            return call
        norm = next(user for user in call.users if operation(user) in BATCH_NORMS)
        return norm if is_float(norm) else next(user for user in norm.users if user.args[1] == 0)

    def place(self, node: fx.Node) -> tuple[str, fx.Node] | None:
        """The module behind whose output a quantizer makes the layer emit codes, and its node.

        None where the layer emits codes without it, or where there is no such module.
        """
        passed = [node]
        while not self.is_quantized(node):
            after = self._only_reader(node)
            if after is None or not _changes_places(after):
                if after is not None and operation(after) == "cat" and self._joins_layers(after):
                    return None
                break
            node = after
            passed.append(node)
        else:
            return None
        places = (module_output(self.program, place) for place in reversed(passed) if place not in self.program.outputs)
        return next((place for place in places if place is not None and place[1] in passed), None)

    def is_quantized(self, node: fx.Node) -> bool:
        """Whether every reader of a tensor reads it through one quantizer."""
        if node in self.quantized:
            return True
        return node in self.readers and set(_users(node)) <= self.readers[node] and node not in self.program.outputs

    def _only_reader(self, node: fx.Node) -> fx.Node | None:
        return _only_reader(self.program, node)

    def _joins_layers(self, cat: fx.Node) -> bool:
        """Whether the quantizer behind a concatenation moves in front of it, into a layer for each part."""
        node: fx.Node | None = cat
        while node is not None and not self.is_quantized(node):
            node = self._only_reader(node)
            if node is not None and not _changes_places(node):
                return False
        parts: Any = cat.args[0]
        return node is not None and all(map(self._comes_from_layer, parts))

    def _comes_from_layer(self, node: fx.Node) -> bool:
        while self._only_reader(node) is not None and node not in self.quantized:
            if node in self.layer_outputs:
                return True
            if not _changes_places(node):
                return False
            node = node.all_input_nodes[0]
        return False


def _changes_places(node: fx.Node) -> bool:
    """Whether a quantizer behind an operation can move in front of it."""
    if operation(node) in CLIPS:
        return clip_bounds(node) is not None
    return moves_values(node)


def _leads_to(node: fx.Node, call: fx.Node) -> bool:
    """Whether a reader is the layer's call, or the padding that the layer does itself."""
    while node is not call and len(node.users) == 1:
        node = next(iter(node.users))
    return node is call


def _only_reader(program: Program, node: fx.Node) -> fx.Node | None:
    """The one reader of a tensor; None where there are several, or where the network returns it."""
    users = _users(node)
    return users[0] if len(users) == 1 and node not in program.outputs else None


def _users(node: fx.Node) -> list[fx.Node]:
    """The readers whose results something reads."""
    return [user for user in node.users if user.users or user.op == "output"]
