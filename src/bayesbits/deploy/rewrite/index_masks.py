"""Index masks: for each dimension of a tensor, which of its indices remain when channels are removed."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesbits.graph.channel_labels import collapse

IndexMasks = tuple[Tensor | None, ...]
"""For each dimension a mask that is True for the indices that remain; None where all of them do.

The empty tuple stands for a tensor of any rank from which nothing is removed."""


def masks_from_labels(labels: Tensor, removed: Tensor) -> IndexMasks | None:
    """The masks of a tensor with these channel labels; None where what remains is not a grid of indices.

    `removed` says for every atom whether it is removed; its last element stands for the labels that are not atoms.
    """
    small = collapse(labels)
    remains = ~removed[torch.where(small >= 0, small, len(removed) - 1)]
    if bool(remains.all()):
        return (None,) * labels.dim()
    masks: list[Tensor | None] = []
    grid = torch.ones((), dtype=torch.bool)
    for dim in range(small.dim()):
        others = [other for other in range(small.dim()) if other != dim]
        mask = remains.any(dim=others) if others else remains
        grid = grid & mask.reshape(-1, *[1] * (small.dim() - dim - 1))
        masks.append(none_if_full(mask))
    return tuple(masks) if torch.equal(grid.expand_as(remains), remains) else None


def none_if_full(mask: Tensor | None) -> Tensor | None:
    """A mask, or None where all of its indices remain."""
    return None if mask is None or bool(mask.all()) else mask


def removes_any(masks: IndexMasks) -> bool:
    """Whether the masks remove any index."""
    return any(mask is not None for mask in masks)


def remaining_size(size: int, mask: Tensor | None) -> int:
    """How many of `size` indices remain."""
    return size if mask is None else int(mask.sum())


def same_masks(left: IndexMasks, right: IndexMasks) -> bool:
    """Whether two tensors have the same masks."""
    left, right = left or (None,) * len(right), right or (None,) * len(left)
    return all(
        (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(left, right, strict=True)
    )
