"""Sizes and positions that are arguments of operations, corrected for removed channels.

Each function corrects the arguments of one kind of operation. It returns False (`correct_pad`: None), and changes
nothing, where the operation cannot work on the channels that remain.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx

from bayesbits.deploy.rewrite.index_masks import IndexMasks, none_if_full, remaining_size
from bayesbits.graph.exported_program import arguments, operation

VIEWS = ("view", "_unsafe_view", "reshape", "expand")
SLICES = ("slice", "narrow", "select")
SPLITS = ("split", "split_with_sizes", "chunk")


def correct_view(node: fx.Node, masks: IndexMasks) -> bool:
    """Views and expansions: their sizes become those that remain. `masks` are those of the result.

    A computed size, such as that of batch and heads together, is left to torch, which finds one that is not given.
    """
    data, sizes, *rest = node.args
    assert isinstance(sizes, Sequence)
    corrected = [
        size if mask is None or size == -1 else remaining_size(size, mask) if isinstance(size, int) else -1
        for size, mask in zip(sizes, masks, strict=True)
    ]
    if corrected.count(-1) > max(1, list(sizes).count(-1)):
        return False
    node.args = (data, corrected, *rest)
    return True


def correct_pad(node: fx.Node, masks: IndexMasks) -> IndexMasks | None:
    """Padding with zeros: only the zeros that remain are added; returns the masks that the padded tensor must have.

    `masks` are those of the result.
    """
    data, _, *rest = node.args
    amounts: list[int] = list(arguments(node)["pad"])
    needed = list(masks)
    for index in range(0, len(amounts), 2):
        dim, (before, behind) = len(needed) - 1 - index // 2, amounts[index : index + 2]
        mask = needed[dim]
        if mask is None or before == behind == 0:
            continue
        if before < 0 or behind < 0 or arguments(node).get("mode", "constant") != "constant":
            return None
        end = len(mask) - behind
        amounts[index : index + 2] = [int(mask[:before].sum()), int(mask[end:].sum())]
        needed[dim] = none_if_full(mask[before:end])
    node.args = (data, amounts, *rest)
    return tuple(needed)


def correct_slice(node: fx.Node, source: IndexMasks) -> bool:
    """Slices: start and end are counted among the indices that remain. `source` are the masks of the sliced tensor."""
    given, name = arguments(node), operation(node)
    dim = int(given["dim"]) % len(source)
    mask = source[dim]
    if mask is None:
        return True
    before = [0, *mask.cumsum(0).tolist()]  # how many indices remain before each index
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


def correct_split(node: fx.Node, parts: Sequence[Tensor], source: IndexMasks, masks: Sequence[IndexMasks]) -> bool:
    """Splits: each part has the size that remains of it.

    `source` are the masks of the tensor that is split, `masks` those of the parts.
    """
    dim = int(arguments(node)["dim"]) % len(source)
    if source[dim] is None:
        return True
    sizes = [remaining_size(part.shape[dim], mask[dim]) for part, mask in zip(parts, masks, strict=True)]
    if 0 in sizes:
        return False
    node.target, node.args, node.kwargs = torch.ops.aten.split_with_sizes.default, (node.args[0], sizes, dim), {}
    return True


def correct_unflatten(node: fx.Node, masks: IndexMasks) -> bool:
    """Unflattened dimensions have the sizes that remain. `masks` are those of the result."""
    given = arguments(node)
    sizes: Sequence[int] = given["sizes"]
    dim = int(given["dim"]) % (len(masks) - len(sizes) + 1)
    corrected = [
        remaining_size(size, mask) if isinstance(size, int) and size != -1 else size
        for size, mask in zip(sizes, masks[dim : dim + len(sizes)], strict=True)
    ]
    node.args, node.kwargs = (node.args[0], dim, corrected), {}
    return True


def squeezes_the_same(node: fx.Node, sizes: Sequence[int]) -> bool:
    """Whether a squeeze drops the same dimensions where channels are removed; `sizes` are those before removal."""
    dims = arguments(node).get("dim")
    return dims is not None and all(sizes[dim] == 1 for dim in (dims if isinstance(dims, Sequence) else (dims,)))
