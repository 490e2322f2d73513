"""Taking channels out of the float graph.

Every tensor of the graph carries labels that say which channel class each of its elements belongs to (see
`graph.labels`), so that it is known for each what is left of it: along every dimension the indices that stay. Most
operations do the same to what is left; sizes that were written down as numbers (views, slices, pads) are corrected.
Where an operation needs all channels to do its work (a shuffle across removed ones), zeros are put back in front of it
and what is removed is cut behind it: the result is the same, as removed channels are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from bayesbits.deploy.fold import LAYERS, LayerNode
from bayesbits.deploy.program import FloatProgram
from bayesbits.graph.elementwise import is_elementwise
from bayesbits.graph.exported import operation, shape
from bayesbits.graph.labels import Labels, collapse
from bayesbits.graph.rules import PADS

aten = torch.ops.aten

Kept = tuple[Tensor | None, ...]
"""For each dimension a mask of the indices that stay; None where all do."""

VIEWS = ("view", "_unsafe_view", "reshape", "expand")
SPLITS = ("split", "split_with_sizes", "chunk")
NEEDS_ALL = ("roll", "unfold", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle")
NEEDS_ALL += ("unflatten", "unbind", "repeat", "squeeze")


def prune(program: FloatProgram, layers: list[LayerNode], removed: frozenset[int]) -> None:
    """Take the channels of these classes out of a graph in which layers are modules already."""
    if removed:
        _Pruning(program, layers, removed).run()


class _Pruning:
    def __init__(self, program: FloatProgram, layers: list[LayerNode], removed: frozenset[int]) -> None:
        self.program, self.graph = program, program.graph
        self.removed = removed
        self.layers = {call: entry.layer for entry in layers for call in entry.calls}
        channels = program.reading.channels
        self._class_of = channels.class_of
        atoms = max(self._class_of, default=-1) + 1
        self._gone = torch.tensor([self._class_of.get(atom, -1) in removed for atom in range(atoms)] + [False])
        self._twin = {node: twin for twin, node in program.node_of.items()}
        self.kept: dict[fx.Node, list[Kept]] = {}
        """What is really left of every node's outputs so far."""

    def run(self) -> None:
        for node in list(self.graph.nodes):
            if node.op == "output":
                self._restore_inputs(node)
            elif node in self.layers:
                self._pass_layer(node)
            elif node.op == "call_function" and (node in self._twin or node.all_input_nodes):
                self._pass(node)
            else:
                self.kept[node] = [()]

    def _left(self, node: fx.Node) -> list[Kept] | None:
        """What is to be left of a node's outputs, by their labels; None where that is no grid of indices."""
        twin = self._twin.get(node)
        if twin is None:
            return None
        if operation(node) in PADS and len(node.users) == 1:  # channels of zeros go with what they are added to
            user = next(iter(node.users))
            user_twin = self._twin.get(user)
            if user_twin is not None and user not in self.layers and is_elementwise(user_twin, operation(user)):
                if shape(user_twin) == shape(twin):
                    return self._left(user)
        labels: Labels = self.program.reading.channels.labels[twin]
        parts = labels if isinstance(labels, list) else [labels]
        found = [self._kept_of(part) for part in parts]
        return None if any(part is None for part in found) else [part for part in found if part is not None]

    def _kept_of(self, labels: Tensor) -> Kept | None:
        small = collapse(labels)
        stays = ~self._gone[torch.where(small >= 0, small, len(self._gone) - 1)]
        if bool(stays.all()):
            return (None,) * labels.dim()
        masks: list[Tensor | None] = []
        together = torch.ones((), dtype=torch.bool)
        for dim in range(small.dim()):
            others = [other for other in range(small.dim()) if other != dim]
            mask = stays.any(dim=others) if others else stays
            together = together & mask.reshape(-1, *[1] * (small.dim() - dim - 1))
            masks.append(None if bool(mask.all()) else mask)
        return tuple(masks) if torch.equal(together.expand_as(stays), stays) else None

    def _pass_layer(self, node: fx.Node) -> None:
        layer = self.layers[node]
        spatial = 0 if layer.kind == "linear" else len(layer.weight_shape) - 2
        source = node.args[0]
        assert isinstance(source, fx.Node)
        rank = self._rank(node)
        channel_dim = rank - 1 - spatial
        reads, makes = (
            torch.tensor([channel not in self.removed for channel in channels])
            for channels in (layer.in_channels, layer.out_channels)
        )
        wanted: list[Tensor | None] = [None] * rank
        wanted[channel_dim] = None if bool(reads.all()) else reads
        self._align(node, source, tuple(wanted))
        made: list[Tensor | None] = [None] * rank
        made[channel_dim] = None if bool(makes.all()) else makes
        self.kept[node] = [tuple(made)]

    def _pass(self, node: fx.Node) -> None:
        sources = [used for used in node.all_input_nodes if any(map(_any_gone, self.kept.get(used, [])))]
        left = self._left(node)
        if node not in self._twin:  # put in by folding, beside the channels
            self.kept[node] = self.kept.get(node.all_input_nodes[0], [()])
            return
        twin = self._twin[node]
        if not sources and not (left and any(map(_any_gone, left))):
            self.kept[node] = [()]
            return
        if left is not None and self._adapt(node, twin, left):
            self.kept[node] = left
            return
        self._restore_inputs(node)
        if isinstance(twin.meta["val"], Tensor):
            self.kept[node] = [()]
            if left is not None and _any_gone(left[0]):
                self._cut_behind(node, left[0])
        else:
            self.kept[node] = [() for _ in twin.meta["val"]]

    def _adapt(self, node: fx.Node, twin: fx.Node, left: list[Kept]) -> bool:
        """Let an operation work on what is left; False where it cannot."""
        name, wanted = operation(node), left[0]
        if name == "getitem":
            source, index = node.args
            assert isinstance(source, fx.Node) and isinstance(index, int)
            return _same(self.kept[source][index], wanted)
        if is_elementwise(twin, name):
            for used in node.all_input_nodes:
                if used in self._twin:
                    size = shape(self._twin[used])
                    offset = len(shape(twin)) - len(size)
                    masks = wanted if wanted else (None,) * len(shape(twin))
                    self._align(node, used, tuple(None if n == 1 else masks[d + offset] for d, n in enumerate(size)))
            return True
        if name == "cat":
            return self._adapt_cat(node, twin, wanted)
        if name in PADS:
            return self._adapt_pad(node, twin, wanted)
        source = node.all_input_nodes[0]
        have = self._full(source, self.kept[source][0])
        ideal = self._left(source)
        if ideal is None or not _same(have, self._full(source, ideal[0])) or name in NEEDS_ALL:
            return False
        if name in VIEWS:
            sizes = [
                size if not isinstance(size, int) or size == -1 or mask is None else int(mask.sum())
                for size, mask in zip(node.args[1], self._full(node, wanted), strict=True)  # type: ignore[arg-type]
            ]
            node.args = (node.args[0], sizes, *node.args[2:])
            return True
        if name in ("slice", "narrow", "select", *SPLITS):
            return self._adapt_slice(node, twin, have, left)
        return True

    def _adapt_cat(self, node: fx.Node, twin: fx.Node, wanted: Kept) -> bool:
        dim: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        dim %= len(shape(twin))
        start = 0
        for used in list(node.args[0]):  # type: ignore[arg-type]
            size = shape(self._twin[used])
            if size == (0,):
                continue
            masks = list(self._full(node, wanted))
            whole = masks[dim]
            masks[dim] = None if whole is None else whole[start : start + size[dim]]
            if masks[dim] is not None and not bool(masks[dim].any()):  # type: ignore[union-attr]
                return False
            start += size[dim]
            self._align(node, used, tuple(None if m is None or bool(m.all()) else m for m in masks))
        return True

    def _adapt_pad(self, node: fx.Node, twin: fx.Node, wanted: Kept) -> bool:
        source = node.all_input_nodes[0]
        amounts: list[int] = list(node.args[1])  # type: ignore[arg-type]
        masks, rank = list(self._full(node, wanted)), len(shape(twin))
        for index in range(0, len(amounts), 2):
            dim = rank - 1 - index // 2
            mask, (before, behind) = masks[dim], amounts[index : index + 2]
            if mask is None or (before == 0 and behind == 0):
                continue
            mode = node.args[2] if len(node.args) > 2 and isinstance(node.args[2], str) else "constant"
            if before < 0 or behind < 0 or mode != "constant":
                return False
            inner = mask[before : len(mask) - behind]
            amounts[index : index + 2] = [int(mask[:before].sum()), int(mask[len(mask) - behind :].sum())]
            masks[dim] = None if bool(inner.all()) else inner
        self._align(node, source, tuple(masks))
        node.args = (node.args[0], amounts, *node.args[2:])
        return True

    def _adapt_slice(self, node: fx.Node, twin: fx.Node, have: Kept, left: list[Kept]) -> bool:
        name = operation(node)
        args: list[Any] = list(node.args)
        position = 2 if name in SPLITS else 1
        dim = (args[position] if len(args) > position else node.kwargs.get("dim", 0)) % len(have)
        mask = have[dim]
        if mask is None:
            return True
        if name in SPLITS:
            outputs = [value.shape[dim] for value in twin.meta["val"]]
            kept = [
                size if not part or part[dim] is None else int(part[dim].sum())  # type: ignore[union-attr]
                for size, part in zip(outputs, left, strict=True)
            ]
            if 0 in kept:
                return False
            node.target, node.args, node.kwargs = aten.split_with_sizes.default, (args[0], kept, dim), {}
            return True
        before = torch.cat([torch.zeros(1, dtype=torch.long), mask.cumsum(0)])
        if name == "select":
            index = args[2] % len(mask)
            node.args = (args[0], args[1], int(before[index]))
            return bool(mask[index])
        if name == "slice" and len(args) > 4 and args[4] != 1:
            return False
        start = args[2] if len(args) > 2 and args[2] is not None else 0
        end = args[3] if len(args) > 3 and args[3] is not None else len(mask)
        if name == "narrow":
            end = start + args[3]
        start, end, _ = slice(start, end).indices(len(mask))
        first, last = int(before[start]), int(before[end])
        node.args = (args[0], dim, first, last - first if name == "narrow" else last)
        return last > first

    def _full(self, node: fx.Node, kept: Kept) -> Kept:
        """Masks for every dimension, where () stands for all of everything."""
        return kept or (None,) * self._rank(node)

    def _rank(self, node: fx.Node) -> int:
        return len(shape(self._twin[node]))

    def _align(self, user: fx.Node, source: fx.Node, wanted: Kept) -> None:
        """Let `user` read no more of `source` than is wanted."""
        have = self._full(source, self.kept[source][0]) if source in self._twin else self.kept[source][0]
        if _same(have or (None,) * len(wanted), wanted):
            return
        have = have or (None,) * len(wanted)
        if any(h is not None and (w is None or bool((w & ~h).any())) for h, w in zip(have, wanted, strict=True)):
            with self.graph.inserting_before(user):
                source_all = self._restored(source, have)
            have, changed = (None,) * len(wanted), source_all
        else:
            changed = source
        with self.graph.inserting_before(user):
            for dim, (left, want) in enumerate(zip(have, wanted, strict=True)):
                if want is not None and not (left is not None and torch.equal(left, want)):
                    positions = want.nonzero().flatten() if left is None else want[left].nonzero().flatten()
                    changed = self._select(changed, dim, positions)
        user.replace_input_with(source, changed)

    def _cut_behind(self, node: fx.Node, wanted: Kept) -> None:
        """Let every reader of a node read what is wanted of it."""
        users = list(node.users)
        changed = node
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
        for source in list(node.all_input_nodes):
            kept = self.kept.get(source, [()])
            if len(kept) == 1 and _any_gone(kept[0]):
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


def _any_gone(kept: Kept) -> bool:
    return any(mask is not None for mask in kept)


def _same(left: Sequence[Tensor | None], right: Sequence[Tensor | None]) -> bool:
    left, right = left or (None,) * len(right), right or (None,) * len(left)
    return all(
        (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(left, right, strict=True)
    )
