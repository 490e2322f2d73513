"""The labels of channels: integers that say which channel of which layer an element of a tensor belongs to.

Every tensor of the exported network gets a tensor of labels of the same shape. So an operation that only moves data
(a permutation, reshape, slice) is applied to the labels without change. Labels that repeat along a dimension are
stored as an expanded tensor (stride 0), so that they need memory for the channels and not for the images.

A label of 0 or above is an *atom*: one output channel of one layer. Atoms that meet in an addition belong to one
*channel class* (found by union-find) and can only be removed together. A negative label is *foreign*, which means that
no layer makes the value: `ZERO` is a constant zero, and the others stand for values such as a network input or the
output of a normalization.

*Blocks.* Some channels can only be removed in blocks: those of an attention head. Their atoms are one class, although
only some of them have to be zero (the values); the others are not read any more once those are (queries and keys). A
*dependent* atom stands for something that is computed from a block and is not zero where the block is (the scores): it
goes with its class if nothing reads it but a product with zeros of that class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Labels = Tensor | list[Tensor]

ZERO = -1


class ChannelClasses:
    """The atoms, which of them are one class, and why some classes cannot be removed.

    Without `blocks` channels that would only go in blocks stay, each in a class of its own.
    """

    def __init__(self, *, blocks: bool = True) -> None:
        self.blocks = blocks
        self._parents: list[int] = []
        self._zero_parents: list[int] = []  # of atoms that are zero only together: without those of blocks
        self._dependent: list[bool] = []
        self._dependent_mask = torch.zeros(0, dtype=torch.bool)
        self._in_blocks: set[int] = set()
        self._reasons: dict[int, tuple[int, str]] = {}
        self._sources: list[str] = ["a constant zero"]
        self._marks = 0

    def new(self, count: int, *, dependent: bool = False) -> Tensor:
        """Fresh atoms for the output channels of a layer, or for what is computed from blocks of channels."""
        first = len(self._parents)
        for parents in (self._parents, self._zero_parents):
            parents.extend(range(first, first + count))
        self._dependent.extend([dependent] * count)
        return torch.arange(first, first + count)

    def dependent(self, labels: Tensor) -> Tensor:
        """A mask of the labels that are dependent atoms."""
        if len(self._dependent_mask) < len(self._dependent):
            self._dependent_mask = torch.tensor(self._dependent)
        if not len(self._dependent_mask):
            return torch.zeros_like(labels, dtype=torch.bool)
        return self._dependent_mask[labels.clamp(min=0)] & (labels >= 0)

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
        return _find(self._parents, atom)

    def find_zero(self, atom: int) -> int:
        """The atom that represents those that are zero together: what is in a block for another reason is not there."""
        return _find(self._zero_parents, atom)

    def block_roots(self) -> set[int]:
        """The atoms that represent the classes that are blocks of channels."""
        return {self.find(member) for member in self._in_blocks}

    def unite_blocks(self, rows: Tensor) -> None:
        """Make the atoms of each row one class, a block; negative labels are ignored."""
        first = rows.max(dim=1, keepdim=True).values.expand_as(rows)
        self.unite(first, rows, zero_together=False)
        self._in_blocks.update(torch.unique(first[first >= 0]).tolist())

    def unite(self, left: Tensor, right: Tensor, *, zero_together: bool = True) -> None:
        """Put the atoms at equal places of two label tensors into one class; negative labels are ignored.

        `zero_together`: all of them are zero where the class is removed.
        """
        both = (left >= 0) & (right >= 0) & (left != right)
        pairs = torch.stack((left[both], right[both]), dim=1)
        for first, second in torch.unique(pairs, dim=0).tolist():
            if zero_together:
                a, b = self.find_zero(first), self.find_zero(second)
                self._zero_parents[max(a, b)] = min(a, b)
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
        self.keep(rows[self.dependent(rows)], "scores of attention feed a layer")
        return atoms


def _find(parents: list[int], atom: int) -> int:
    while parents[atom] != atom:
        parents[atom] = parents[parents[atom]]
        atom = parents[atom]
    return atom


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
