"""Removing channels from the graph.

The weights of the layers have lost their channels already (`layer_weights.remove_weight_channels`); here everything
between the layers follows. Every tensor of the graph carries labels that say which channel class each of its elements
belongs to (see `graph.channel_labels`), so its index masks are known: which indices remain along each dimension. Most
operations work on the remaining channels as they stand; sizes that were written down as numbers (views, slices, pads)
are corrected. Where an operation needs all channels (a shuffle across removed ones), zeros are inserted for the removed
channels in front of it, and the remaining channels are selected behind it. The result is the same: removed channels are
zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from bayesbits.deploy.rewrite.index_masks import IndexMasks, masks_from_labels, none_if_full, removes_any, same_masks
from bayesbits.deploy.rewrite.program import RewrittenProgram
from bayesbits.deploy.rewrite.size_arguments import (
    SLICES,
    SPLITS,
    VIEWS,
    correct_pad,
    correct_slice,
    correct_split,
    correct_unflatten,
    correct_view,
    squeezes_the_same,
)
from bayesbits.graph.activation_products import SOFTMAX
from bayesbits.graph.channel_rules import PADS, SAME
from bayesbits.graph.exported_program import arguments, operation, shape
from bayesbits.graph.head_rules import masks_of
from bayesbits.graph.layer_norms import INSTANCE_NORM
from bayesbits.graph.pointwise import is_pointwise
from bayesbits.graph.symbolic_sizes import is_symbolic

aten = torch.ops.aten

# fmt: off
NEEDS_ALL = frozenset((
    "roll", "unfold", "repeat",
    "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle",
))


WITHOUT_SIZES = frozenset((
    "view", "_unsafe_view", "reshape", "permute", "transpose", "t", "movedim", "unsqueeze", "flatten", *SAME, *SOFTMAX,
))
# fmt: on


class DynamicChannelsError(Exception):
    """An operation needs to know where channels lie in a size that may change."""


def remove_channels(program: RewrittenProgram) -> None:
    """Remove the channels of the decision's removed channel classes."""
    if program.decision.removed:
        _ChannelRemoval(program).run()


class _ChannelRemoval:
    def __init__(self, program: RewrittenProgram) -> None:
        self.program, self.graph, self.removed = program, program.graph, program.decision.removed
        self.layers = {call: entry.layer for entry in program.layers for call in entry.calls}
        class_of = program.reading.channels.class_of
        atoms = [class_of.get(atom, -1) in self.removed for atom in range(max(class_of, default=-1) + 1)]
        self._removed_atoms = torch.tensor([*atoms, False])
        self._twin = program.twins()
        self.masks: dict[fx.Node, list[IndexMasks]] = {}
        """The masks of the outputs of every node that has been visited, as they really are now."""

    def run(self) -> None:
        """Visit the nodes in running order."""
        for node in list(self.graph.nodes):
            if node.op == "output":
                self._restore_inputs(node)
            elif node in self.layers:
                self._visit_layer(node)
            elif node.op == "call_function":
                self._visit_operation(node)
            else:
                self.masks[node] = [()]

    def _masks_by_labels(self, node: fx.Node) -> list[IndexMasks] | None:
        """The masks that a node's outputs should have by their labels; None where they are no grids of indices."""
        twin = self._twin[node]
        if operation(node) in PADS and len(node.users) == 1:  # channels of zeros go with those that they are added to
            (user,) = node.users
            if self._is_pointwise(user) and shape(self._twin[user]) == shape(twin):
                return self._masks_by_labels(user)
        labels = self.program.reading.channels.labels[twin]
        parts = labels if isinstance(labels, list) else [labels]
        found = [masks_from_labels(part, self._removed_atoms) for part in parts]
        self._check_fixed_sizes(node, found)
        return None if None in found else [part for part in found if part is not None]

    def _check_fixed_sizes(self, node: fx.Node, found: Sequence[IndexMasks | None]) -> None:
        """Raise where indices are removed along a dimension whose size may change: masks are those of the examples.

        Operations that read and write whole dimensions do without positions: a view of heads and batch as one size.
        """
        twin = self._twin[node]
        if is_pointwise(twin) or twin in self.program.reading.channels.slices or operation(node) in WITHOUT_SIZES:
            return
        for masks in found:
            _check_fixed(node, masks or ())

    def _visit_layer(self, node: fx.Node) -> None:
        """A layer reads and makes the channels that its own weight has."""
        layer, rank = self.layers[node], self._rank(node)
        dim = rank - 1 - (0 if layer.kind == "linear" else len(layer.weight_shape) - 2)

        def masks(channels: tuple[int, ...]) -> IndexMasks:
            mask = none_if_full(torch.tensor([channel not in self.removed for channel in channels]))
            return tuple(mask if other == dim else None for other in range(rank))

        self._align(node, node.all_input_nodes[0], masks(layer.in_channels))
        self.masks[node] = [masks(layer.out_channels)]

    def _visit_operation(self, node: fx.Node) -> None:
        if node not in self._twin:  # a size, or the padding of an image that folding inserted
            if operation(node) == "sym_size":
                _check_fixed(node.all_input_nodes[0], self.masks[node.all_input_nodes[0]][0])
            self.masks[node] = self.masks[node.all_input_nodes[0]] if operation(node) in PADS else [()]
            return
        wanted = self._masks_by_labels(node)
        touched = any(removes_any(masks) for used in node.all_input_nodes for masks in self.masks[used])
        if not touched and not (wanted and any(map(removes_any, wanted))):
            self.masks[node] = [()]
        elif wanted is not None and self._adapt(node, wanted):
            self.masks[node] = wanted
        else:
            self._restore_inputs(node)
            value = self._twin[node].meta["val"]
            self.masks[node] = [()] if isinstance(value, Tensor) else [() for _ in value]
            if wanted is not None and isinstance(value, Tensor) and removes_any(wanted[0]):
                self._select_behind(node, wanted[0])

    def _adapt(self, node: fx.Node, outputs: list[IndexMasks]) -> bool:
        """Let an operation work on the channels that remain; False where it cannot."""
        name, twin, wanted = operation(node), self._twin[node], outputs[0]
        source = node.all_input_nodes[0] if node.all_input_nodes else None
        if name == "getitem" and source is not None:
            index: Any = node.args[1]
            return same_masks(self.masks[source][index], wanted)
        if is_pointwise(twin):
            self._adapt_pointwise(node, wanted)
            return True
        if name == "cat":
            return self._adapt_cat(node, wanted)
        if source is None:
            return False
        if name == INSTANCE_NORM:
            self._adapt_instance_norm(node, wanted)
            return True
        if twin in self.program.reading.channels.slices:
            return self._adapt_product(node, wanted)
        if name in PADS:
            needed = correct_pad(node, wanted)
            if needed is not None:
                self._align(node, source, needed)
            return needed is not None
        if name in NEEDS_ALL or not all(map(self._is_as_labeled, node.all_input_nodes)):
            return False
        present = self._full_masks(source)
        if name in VIEWS:
            return correct_view(node, wanted)
        if name == "unflatten":
            return correct_unflatten(node, wanted)
        if name == "squeeze":
            return squeezes_the_same(node, shape(self._twin[source]))
        if name == "unbind":
            return present[arguments(node)["dim"]] is None
        if name in SPLITS:
            return correct_split(node, twin.meta["val"], present, outputs)
        return correct_slice(node, present) if name in SLICES else True

    def _adapt_pointwise(self, node: fx.Node, wanted: IndexMasks) -> None:
        """Let the inputs have the masks of the result, except along dimensions that are broadcast."""
        for used in node.all_input_nodes:
            if used in self._twin:  # sizes have no twins
                sizes = shape(self._twin[used])
                slopes = operation(node) == "prelu" and used is node.args[1]  # those lie along dimension 1
                last = wanted[1:2] if slopes else wanted[len(wanted) - len(sizes) :]
                masks = tuple(None if size == 1 else mask for size, mask in zip(sizes, last, strict=True))
                self._align(node, used, masks)

    def _adapt_instance_norm(self, node: fx.Node, wanted: IndexMasks) -> None:
        """Let the norm behind a layer have the channels that remain, its scale, shift and statistics as well."""
        for used in node.all_input_nodes:
            self._align(node, used, wanted if used is node.args[0] else wanted[1:2])

    def _adapt_product(self, node: fx.Node, wanted: IndexMasks) -> bool:
        """Let the operands of a product have the heads that remain, and what is added to it those of the result."""
        needed = []
        for used in node.all_input_nodes:
            if used in self._twin and used not in masks_of(node):
                by_labels = self._masks_by_labels(used)
                if by_labels is None:
                    return False
                needed.append((used, by_labels[0]))
        for used, masks in needed:
            self._align(node, used, masks)
        for used in masks_of(node):
            sizes, stack = shape(self._twin[used]), (*wanted[:-2], None, None)
            last = stack[len(stack) - len(sizes) :]
            self._align(node, used, tuple(None if size == 1 else mask for size, mask in zip(sizes, last, strict=True)))
        return True

    def _adapt_cat(self, node: fx.Node, wanted: IndexMasks) -> bool:
        """Let each part of a concatenation have its part of the masks; False where nothing remains of one."""
        dim: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        dim, start = dim % len(wanted), 0
        needed = []
        for used in node.all_input_nodes:
            sizes = shape(self._twin[used])
            if sizes == (0,):  # torch accepts empty tensors of any rank here
                continue
            whole, masks = wanted[dim], list(wanted)
            masks[dim] = None if whole is None else none_if_full(whole[start : start + sizes[dim]])
            start += sizes[dim]
            needed.append((used, tuple(masks)))
        parts: Any = node.args[0]
        if len(needed) != len(parts) or any(m is not None and not bool(m.any()) for _, masks in needed for m in masks):
            return False
        for used, part in needed:
            self._align(node, used, part)
        return True

    def _is_as_labeled(self, node: fx.Node) -> bool:
        """Whether the masks of a node's only output are those of its labels; sizes have none."""
        by_labels = self._masks_by_labels(node) if node in self._twin else [()]
        return by_labels is not None and same_masks(self.masks[node][0], by_labels[0])

    def _is_pointwise(self, node: fx.Node) -> bool:
        return node in self._twin and node not in self.layers and is_pointwise(self._twin[node])

    def _rank(self, node: fx.Node) -> int:
        return len(shape(self._twin[node]))

    def _full_masks(self, node: fx.Node) -> IndexMasks:
        """The masks of a node's only output, with an entry for every dimension."""
        return self.masks[node][0] or (None,) * self._rank(node)

    def _align(self, user: fx.Node, source: fx.Node, wanted: IndexMasks) -> None:
        """Let `user` read `source` with exactly the wanted masks."""
        present = self.masks[source][0] or (None,) * len(wanted)
        if same_masks(present, wanted):
            return
        changed = source
        _check_fixed(source, [None if same_masks((p,), (w,)) else w for p, w in zip(present, wanted, strict=True)])
        with self.graph.inserting_before(user):
            if any(p is not None and (w is None or bool((w & ~p).any())) for p, w in zip(present, wanted, strict=True)):
                present, changed = (None,) * len(wanted), self._restored(source, present)
            for dim, (mask, want) in enumerate(zip(present, wanted, strict=True)):
                if want is not None and not (mask is not None and torch.equal(mask, want)):
                    remaining = want if mask is None else want[mask]
                    changed = self._select(changed, dim, remaining.nonzero().flatten())
        user.replace_input_with(source, changed)

    def _select_behind(self, node: fx.Node, wanted: IndexMasks) -> None:
        """Let every reader of a node, which has all channels, read those that remain."""
        _check_fixed(node, wanted)
        users, changed = list(node.users), node
        with self.graph.inserting_before(node.next):
            for dim, mask in enumerate(wanted):
                if mask is not None:
                    changed = self._select(changed, dim, mask.nonzero().flatten())
        for user in users:
            user.replace_input_with(node, changed)
        self._twin[changed] = twin = self._twin.pop(node)
        self.program.node_of[twin] = changed
        self.masks[changed] = [wanted]

    def _restore_inputs(self, node: fx.Node) -> None:
        """Let a node read all channels of its inputs, with zeros for those that are removed."""
        for source in list(node.all_input_nodes):
            masks = self.masks[source]
            if len(masks) == 1 and removes_any(masks[0]):
                with self.graph.inserting_before(node):
                    node.replace_input_with(source, self._restored(source, masks[0]))

    def _restored(self, source: fx.Node, masks: IndexMasks) -> fx.Node:
        """A tensor with all channels, and zeros for those that are removed."""
        _check_fixed(source, masks)
        for dim, mask in enumerate(masks):
            if mask is not None:
                amounts = [0, 0] * (len(masks) - 1 - dim) + [0, 1]
                padded = self.graph.call_function(aten.constant_pad_nd.default, (source, amounts, 0.0))
                positions = torch.where(mask, mask.cumsum(0) - 1, int(mask.sum()))
                source = self._select(padded, dim, positions)
        return source

    def _select(self, source: fx.Node, dim: int, positions: Tensor) -> fx.Node:
        index = self.graph.get_attr(self.program.floats.add_positions(positions))
        return self.graph.call_function(aten.index_select.default, (source, dim, index))


def _check_fixed(node: fx.Node, masks: Sequence[Tensor | None]) -> None:
    """Raise where a mask lies along a dimension whose size may change; of several outputs all have the same rank."""
    value = node.meta.get("val")
    first = value[0] if isinstance(value, list | tuple) else value
    sizes = first.shape if isinstance(first, Tensor) else ()
    if any(mask is not None and is_symbolic(size) for size, mask in zip(sizes, masks, strict=False)):
        raise DynamicChannelsError(node.name)
