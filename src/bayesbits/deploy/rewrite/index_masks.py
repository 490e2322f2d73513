"""What is left of a tensor when channels are gone: along every dimension the indices that stay."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bayesbits.graph.channel_labels import collapse

Kept = tuple[Tensor | None, ...]
"""For each dimension a mask of the indices that stay; None where all do, and () where all of everything stays."""


def kept_of(labels: Tensor, gone: Tensor) -> Kept | None:
    """What is left of a tensor with these labels; None where it is not a grid of indices.

    `gone` says of every atom whether it is removed; its last element stands for labels that are no atoms.
    """
    small = collapse(labels)
    stays = ~gone[torch.where(small >= 0, small, len(gone) - 1)]
    if bool(stays.all()):
        return (None,) * labels.dim()
    masks: list[Tensor | None] = []
    together = torch.ones((), dtype=torch.bool)
    for dim in range(small.dim()):
        others = [other for other in range(small.dim()) if other != dim]
        mask = stays.any(dim=others) if others else stays
        together = together & mask.reshape(-1, *[1] * (small.dim() - dim - 1))
        masks.append(some(mask))
    return tuple(masks) if torch.equal(together.expand_as(stays), stays) else None


def some(mask: Tensor | None) -> Tensor | None:
    """A mask, or None where it lets everything stay."""
    return None if mask is None or bool(mask.all()) else mask


def any_gone(kept: Kept) -> bool:
    """Whether anything is gone."""
    return any(mask is not None for mask in kept)


def count(size: int, mask: Tensor | None) -> int:
    """How many of `size` indices stay."""
    return size if mask is None else int(mask.sum())


def same(left: Sequence[Tensor | None], right: Sequence[Tensor | None]) -> bool:
    """Whether the same is left of two tensors."""
    left, right = left or (None,) * len(right), right or (None,) * len(left)
    return all(
        (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(left, right, strict=True)
    )
