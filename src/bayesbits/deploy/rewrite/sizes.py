"""Sizes and positions that a graph holds as numbers, corrected for channels that are gone.

Each function changes the arguments of a node; where it returns False (or None) the operation cannot do its work on what
is left, and nothing was changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx

from bayesbits.deploy.rewrite.index_masks import Kept, count, some
from bayesbits.deploy.rewrite.program import arguments
from bayesbits.graph.exported_program import operation

VIEWS = ("view", "_unsafe_view", "reshape", "expand")
SLICES = ("slice", "narrow", "select")
SPLITS = ("split", "split_with_sizes", "chunk")


def correct_view(node: fx.Node, left: Kept) -> bool:
    """Views and expansions: the sizes of what is left."""
    data, sizes, *rest = node.args
    assert isinstance(sizes, Sequence)
    corrected = [
        count(size, mask) if isinstance(size, int) and size != -1 else size
        for size, mask in zip(sizes, left, strict=True)
    ]
    node.args = (data, corrected, *rest)
    return True


def correct_pad(node: fx.Node, left: Kept) -> Kept | None:
    """Padding with zeros: as many as are left of them; returns what has to be left of what is padded."""
    data, _, *rest = node.args
    amounts: list[int] = list(arguments(node)["pad"])
    masks = list(left)
    for index in range(0, len(amounts), 2):
        dim, (before, behind) = len(masks) - 1 - index // 2, amounts[index : index + 2]
        mask = masks[dim]
        if mask is None or before == behind == 0:
            continue
        if before < 0 or behind < 0 or arguments(node).get("mode", "constant") != "constant":
            return None
        end = len(mask) - behind
        amounts[index : index + 2] = [int(mask[:before].sum()), int(mask[end:].sum())]
        masks[dim] = some(mask[before:end])
    node.args = (data, amounts, *rest)
    return tuple(masks)


def correct_slice(node: fx.Node, have: Kept) -> bool:
    """Slices along a dimension of which indices are gone: from how many before the start to how many before the end."""
    given, name = arguments(node), operation(node)
    dim = int(given["dim"]) % len(have)
    mask = have[dim]
    if mask is None:
        return True
    before = [0, *mask.cumsum(0).tolist()]  # how many stay before each index
    data = node.args[0]
    if name == "select":
        index = int(given["index"]) % len(mask)
        if bool(mask[index]):
            node.args, node.kwargs = (data, dim, before[index]), {}
        return bool(mask[index])
    if given.get("step", 1) != 1:
        return False
    end = given["start"] + given["length"] if name == "narrow" else given["end"]
    start, stop, _ = slice(given["start"], end).indices(len(mask))
    first, last = int(before[start]), int(before[stop])
    if last > first:
        node.args, node.kwargs = (data, dim, first, last - first if name == "narrow" else last), {}
    return last > first


def correct_split(node: fx.Node, parts: Sequence[Tensor], have: Kept, left: Sequence[Kept]) -> bool:
    """Splits along a dimension of which indices are gone: into the sizes of what is left of each part."""
    dim = int(arguments(node)["dim"]) % len(have)
    if have[dim] is None:
        return True
    sizes = [count(part.shape[dim], kept[dim]) for part, kept in zip(parts, left, strict=True)]
    if 0 in sizes:
        return False
    node.target, node.args, node.kwargs = torch.ops.aten.split_with_sizes.default, (node.args[0], sizes, dim), {}
    return True
