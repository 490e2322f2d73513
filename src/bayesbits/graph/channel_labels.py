"""The labels of channels: integers that say which channel of which layer an element of a tensor belongs to.

Every tensor of the exported network gets a tensor of labels of the same shape. So an operation that only moves data
(a permutation, reshape, slice) is applied to the labels without change. Labels that repeat along a dimension are
stored as an expanded tensor (stride 0), so that they need memory for the channels and not for the images.

A label of 0 or above is an *atom*: one output channel of one layer. Atoms that meet in an addition belong to one
*channel class* (found by union-find) and can only be removed together. A negative label is *foreign*, which means that
no layer makes the value: `ZERO` is a constant zero, and the others stand for values such as a network input or the
output of an attention product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Labels = Tensor | list[Tensor]

ZERO = -1


class ChannelClasses:
    """The atoms, which of them are one class, and why some classes cannot be removed."""

    def __init__(self) -> None:
        self._parents: list[int] = []
        self._reasons: dict[int, tuple[int, str]] = {}
        self._sources: list[str] = ["a constant zero"]
        self._marks = 0

    def new(self, count: int) -> Tensor:
        """Fresh atoms for the output channels of a layer."""
        first = len(self._parents)
        self._parents.extend(range(first, first + count))
        return torch.arange(first, first + count)

    @property
    def atoms(self) -> int:
        """How many atoms there are."""
        return len(self._parents)

    def foreign(self, source: str) -> int:
        """The label of foreign values; `source` says in words what they are."""
        if source not in self._sources:
            self._sources.append(source)
        return -1 - self._sources.index(source)

    def source(self, label: int) -> str:
        """The words for what a negative label stands for."""
        return self._sources[-1 - label]

    def find(self, atom: int) -> int:
        """The atom that represents the class of an atom."""
        while self._parents[atom] != atom:
            self._parents[atom] = self._parents[self._parents[atom]]
            atom = self._parents[atom]
        return atom

    def unite(self, left: Tensor, right: Tensor) -> None:
        """Put the atoms at equal places of two label tensors into one class; negative labels are ignored."""
        both = (left >= 0) & (right >= 0) & (left != right)
        pairs = torch.stack((left[both], right[both]), dim=1)
        for first, second in torch.unique(pairs, dim=0).tolist():
            a, b = self.find(first), self.find(second)
            if a == b:
                continue
            self._parents[max(a, b)] = min(a, b)
            reasons = [self._reasons.pop(root) for root in (a, b) if root in self._reasons]
            if reasons:
                self._reasons[min(a, b)] = min(reasons)

    def keep(self, labels: Tensor, reason: str) -> None:
        """Record why the atoms in `labels` cannot be removed; a class keeps the first of its reasons."""
        self._marks += 1
        for atom in torch.unique(collapse(labels)).tolist():
            if atom >= 0:
                self._reasons.setdefault(self.find(atom), (self._marks, reason))

    def reason(self, atom: int) -> str | None:
        """Why the class of an atom cannot be removed; None: it can."""
        found = self._reasons.get(self.find(atom))
        return None if found is None else found[1]

    def columns(self, labels: Tensor, dim: int) -> Tensor:
        """One atom for each index along `dim`, the dimension of a layer's input channels.

        Atoms that reach one input channel at different positions become one class. Where a foreign value arrives as
        well, the class cannot be removed; where only foreign values arrive, the channel gets a fresh atom that cannot.
        """
        rows = collapse(labels, keep=(dim,)).movedim(dim, -1)
        rows = torch.unique(rows.reshape(-1, rows.shape[-1]), dim=0)
        atoms: Tensor = rows.max(dim=0).values
        for row in rows:
            self.unite(atoms, row)
        missing = atoms < 0
        atoms[missing] = self.new(int(missing.sum()))
        for label in torch.unique(rows[rows < 0]).tolist():
            if label != ZERO:
                self.keep(atoms[(rows == label).any(dim=0)], f"is {self.source(label)}")
        return atoms


def collapse(labels: Tensor, keep: Sequence[int] = ()) -> Tensor:
    """Take one index along every dimension that the labels only repeat along, except those to keep."""
    kept = [dim % labels.dim() for dim in keep] if labels.dim() else []
    for dim in range(labels.dim()):
        if dim not in kept and labels.stride(dim) == 0 and labels.shape[dim] > 1:
            labels = labels.narrow(dim, 0, 1)
    return labels


def compact(labels: Tensor) -> Tensor:
    """The same labels, with repetition along a dimension stored as such."""
    small = collapse(labels)
    for dim in range(small.dim()):
        if small.shape[dim] > 1 and bool((small == small.narrow(dim, 0, 1)).all()):
            small = small.narrow(dim, 0, 1)
    return small.expand(labels.shape)


def collapse_together(tensors: Sequence[Tensor], keep: Sequence[int] = ()) -> list[Tensor]:
    """Collapse tensors of the same rank along the dimensions that all of them only repeat along."""
    rank = tensors[0].dim()
    kept = {dim % rank for dim in keep} if rank else set()
    for dim in range(rank):
        if dim not in kept and all(labels.stride(dim) == 0 or labels.shape[dim] == 1 for labels in tensors):
            tensors = [labels.narrow(dim, 0, 1) for labels in tensors]
    return list(tensors)


def filled(value: Any, label: int) -> Labels:
    """Labels for a tensor, or several, all of one kind."""
    if isinstance(value, Tensor):
        return torch.tensor(label).expand(tuple(int(size) for size in value.shape))
    if isinstance(value, (tuple, list)):
        return [one(filled(item, label)) for item in value]
    return torch.tensor(label)


def one(labels: Labels) -> Tensor:
    """The labels of a node that makes one tensor."""
    assert isinstance(labels, Tensor)
    return labels
