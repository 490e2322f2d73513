"""Taking channels out of the float graph.

Every tensor of the graph carries labels that say which channel class each of its elements belongs to (see
`graph.labels`), so that it is known for each what is left of it. Most operations do the same to what is left; sizes
that were written down as numbers (views, slices, pads) are corrected. Where an operation needs all channels to do its
work (a shuffle across removed ones), zeros are put back in front of it and what is removed is cut behind it: the result
is the same, as removed channels are zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from bayesbits.deploy.rewrite.fold_batch_norm import LayerNode
from bayesbits.deploy.rewrite.index_masks import Kept, any_gone, kept_of, same, some
from bayesbits.deploy.rewrite.program import FloatProgram
from bayesbits.deploy.rewrite.sizes import (
    SLICES,
    SPLITS,
    VIEWS,
    correct_pad,
    correct_slice,
    correct_split,
    correct_view,
)
from bayesbits.graph.channel_rules import PADS
from bayesbits.graph.exported_program import operation, shape
from bayesbits.graph.pointwise import is_pointwise

aten = torch.ops.aten

# fmt: off
NEEDS_ALL = frozenset((
    "roll", "unfold", "unflatten", "unbind", "repeat", "squeeze",
    "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle",
))
# fmt: on


def prune(program: FloatProgram, layers: list[LayerNode], removed: frozenset[int]) -> None:
    """Take the channels of these classes out of a graph in which layers are modules already."""
    if removed:
        _Pruning(program, layers, removed).run()


class _Pruning:
    def __init__(self, program: FloatProgram, layers: list[LayerNode], removed: frozenset[int]) -> None:
        self.program, self.graph, self.removed = program, program.graph, removed
        self.layers = {call: entry.layer for entry in layers for call in entry.calls}
        class_of = program.reading.channels.class_of
        gone = [class_of.get(atom, -1) in removed for atom in range(max(class_of, default=-1) + 1)]
        self._gone = torch.tensor([*gone, False])
        self._twin = {node: twin for twin, node in program.node_of.items()}
        self.kept: dict[fx.Node, list[Kept]] = {}
        """What is really left of every node's outputs so far."""

    def run(self) -> None:
        """Go through the graph in running order."""
        for node in list(self.graph.nodes):
            if node.op == "output":
                self._restore_inputs(node)
            elif node in self.layers:
                self._pass_layer(node)
            elif node.op == "call_function":
                self._pass(node)
            else:
                self.kept[node] = [()]

    def _left(self, node: fx.Node) -> list[Kept] | None:
        """What is to be left of a node's outputs, by their labels; None where that is no grid of indices."""
        twin = self._twin[node]
        if operation(node) in PADS and len(node.users) == 1:  # channels of zeros go with what they are added to
            (user,) = node.users
            if self._is_elementwise(user) and shape(self._twin[user]) == shape(twin):
                return self._left(user)
        labels = self.program.reading.channels.labels[twin]
        found = [kept_of(part, self._gone) for part in (labels if isinstance(labels, list) else [labels])]
        return None if None in found else [part for part in found if part is not None]

    def _pass_layer(self, node: fx.Node) -> None:
        """A layer reads and makes the channels that its own weight has."""
        layer, rank = self.layers[node], self._rank(node)
        dim = rank - 1 - (0 if layer.kind == "linear" else len(layer.weight_shape) - 2)
        reads, makes = (
            tuple(some(torch.tensor([channel not in self.removed for channel in channels])) if d == dim else None
                  for d in range(rank))
            for channels in (layer.in_channels, layer.out_channels)
        )  # fmt: skip
        self._align(node, node.all_input_nodes[0], reads)
        self.kept[node] = [makes]

    def _pass(self, node: fx.Node) -> None:
        if node not in self._twin:  # a size, or padding of an image that folding put in
            self.kept[node] = self.kept[node.all_input_nodes[0]] if operation(node) in PADS else [()]
            return
        left = self._left(node)
        touched = any(any_gone(part) for used in node.all_input_nodes for part in self.kept[used])
        if not touched and not (left and any(map(any_gone, left))):
            self.kept[node] = [()]
        elif left is not None and self._adapt(node, left):
            self.kept[node] = left
        else:
            self._restore_inputs(node)
            value = self._twin[node].meta["val"]
            self.kept[node] = [()] if isinstance(value, Tensor) else [() for _ in value]
            if left is not None and isinstance(value, Tensor) and any_gone(left[0]):
                self._cut_behind(node, left[0])

    def _adapt(self, node: fx.Node, left: list[Kept]) -> bool:
        """Let an operation work on what is left; False where it cannot."""
        name, twin, wanted = operation(node), self._twin[node], left[0]
        source = node.all_input_nodes[0] if node.all_input_nodes else None
        if name == "getitem" and source is not None:
            index: Any = node.args[1]
            return same(self.kept[source][index], wanted)
        if is_pointwise(twin):
            for used in node.all_input_nodes:
                if used in self._twin:  # and is no size
                    sizes = shape(self._twin[used])
                    masks = wanted[len(wanted) - len(sizes) :]
                    wider = tuple(None if size == 1 else mask for size, mask in zip(sizes, masks, strict=True))
                    self._align(node, used, wider)
            return True
        if name == "cat":
            return self._adapt_cat(node, wanted)
        if source is None:
            return False
        if name in PADS:
            needed = correct_pad(node, wanted)
            if needed is not None:
                self._align(node, source, needed)
            return needed is not None
        have, ideal = self._full(source), self._left(source)
        if ideal is None or not same(have, ideal[0]) or name in NEEDS_ALL:
            return False
        if name in VIEWS:
            return correct_view(node, wanted)
        if name in SPLITS:
            return correct_split(node, twin.meta["val"], have, left)
        return correct_slice(node, have) if name in SLICES else True

    def _adapt_cat(self, node: fx.Node, wanted: Kept) -> bool:
        dim: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        dim, start = dim % len(wanted), 0
        needed = []
        for used in node.all_input_nodes:
            sizes = shape(self._twin[used])
            if sizes == (0,):  # torch lets empty tensors of any rank pass
                continue
            whole, masks = wanted[dim], list(wanted)
            masks[dim] = None if whole is None else some(whole[start : start + sizes[dim]])
            start += sizes[dim]
            needed.append((used, tuple(masks)))
        parts: Any = node.args[0]
        if len(needed) != len(parts) or any(m is not None and not bool(m.any()) for _, masks in needed for m in masks):
            return False
        for used, part in needed:
            self._align(node, used, part)
        return True

    def _is_elementwise(self, node: fx.Node) -> bool:
        return node in self._twin and node not in self.layers and is_pointwise(self._twin[node])

    def _rank(self, node: fx.Node) -> int:
        return len(shape(self._twin[node]))

    def _full(self, node: fx.Node) -> Kept:
        """What is left of a node's one output, with a mask or None for every dimension."""
        return self.kept[node][0] or (None,) * self._rank(node)

    def _align(self, user: fx.Node, source: fx.Node, wanted: Kept) -> None:
        """Let `user` read exactly what is wanted of `source`."""
        have = self.kept[source][0] or (None,) * len(wanted)
        if same(have, wanted):
            return
        changed = source
        with self.graph.inserting_before(user):
            if any(h is not None and (w is None or bool((w & ~h).any())) for h, w in zip(have, wanted, strict=True)):
                have, changed = (None,) * len(wanted), self._restored(source, have)
            for dim, (left, want) in enumerate(zip(have, wanted, strict=True)):
                if want is not None and not (left is not None and torch.equal(left, want)):
                    positions = want if left is None else want[left]
                    changed = self._select(changed, dim, positions.nonzero().flatten())
        user.replace_input_with(source, changed)

    def _cut_behind(self, node: fx.Node, wanted: Kept) -> None:
        """Let every reader of a node read what is wanted of it."""
        users, changed = list(node.users), node
        with self.graph.inserting_before(node.next):
            for dim, want in enumerate(wanted):
                if want is not None:
                    changed = self._select(changed, dim, want.nonzero().flatten())
        for user in users:
            user.replace_input_with(node, changed)
        self._twin[changed] = twin = self._twin.pop(node)
        self.program.node_of[twin] = changed
        self.kept[changed] = [wanted]

    def _restore_inputs(self, node: fx.Node) -> None:
        """Let a node read all of its inputs, with zeros where channels are gone."""
        for source in list(node.all_input_nodes):
            kept = self.kept[source]
            if len(kept) == 1 and any_gone(kept[0]):
                with self.graph.inserting_before(node):
                    node.replace_input_with(source, self._restored(source, kept[0]))

    def _restored(self, source: fx.Node, kept: Kept) -> fx.Node:
        """A tensor with zeros where channels are gone."""
        for dim, mask in enumerate(kept):
            if mask is not None:
                amounts = [0, 0] * (len(kept) - 1 - dim) + [0, 1]
                padded = self.graph.call_function(aten.constant_pad_nd.default, (source, amounts, 0.0))
                positions = torch.where(mask, mask.cumsum(0) - 1, int(mask.sum()))
                source = self._select(padded, dim, positions)
        return source

    def _select(self, source: fx.Node, dim: int, positions: Tensor) -> fx.Node:
        name = f"positions.{len(self.program.floats._buffers)}"
        index = self.graph.get_attr(self.program.floats.add(name, positions, parameter=False))
        return self.graph.call_function(aten.index_select.default, (source, dim, index))
