"""Labels that channels carry through a network, and what becomes of them when they meet.

Every tensor of the traced network gets a tensor of labels of the same shape: each element says which channel of which
layer it belongs to. So an operation that only moves data is applied to the labels as it stands, and permutations,
reshapes, slices and concatenations need no thought. Labels that repeat along a dimension are kept as an expanded
(stride 0) tensor, so that their size is that of the channels, not of the images.

A label of 0 or above is an *atom*: one output channel of one layer. Atoms that meet in an addition belong to one
channel class (union-find). Negative labels are no layer's channels: `ZERO` is a constant zero, and the others stand for
things such as a network input or the output of an attention product, which nobody can switch off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Labels = Tensor | list[Tensor]

ZERO = -1


class ChannelClasses:
    """The atoms, which of them belong together, and why some cannot be removed."""

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
        """The label of values that are no layer's channels; `source` says in words what they are."""
        if source not in self._sources:
            self._sources.append(source)
        return -1 - self._sources.index(source)

    def source(self, label: int) -> str:
        """What a negative label stands for."""
        return self._sources[-1 - label]

    def find(self, atom: int) -> int:
        """The atom that stands for the whole class of an atom."""
        while self._parents[atom] != atom:
            self._parents[atom] = self._parents[self._parents[atom]]
            atom = self._parents[atom]
        return atom

    def unite(self, left: Tensor, right: Tensor) -> None:
        """Put the atoms at equal places of two label tensors into one class, and pass over labels that are no atoms."""
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
        """Say why the atoms in `labels` cannot be removed; the reason that was met first stays."""
        self._marks += 1
        for atom in torch.unique(collapse(labels)).tolist():
            if atom >= 0:
                self._reasons.setdefault(self.find(atom), (self._marks, reason))

    def reason(self, atom: int) -> str | None:
        """Why the class of an atom cannot be removed; None: it can."""
        found = self._reasons.get(self.find(atom))
        return None if found is None else found[1]

    def columns(self, labels: Tensor, dim: int) -> Tensor:
        """One atom for each index along `dim`: what meets a layer's input channel, or a feature, at any position.

        Atoms that reach the same channel at different positions go into one class. Where something foreign arrives as
        well, the class stays; where nothing but foreign values arrive, the channel gets a fresh atom that stays.
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
