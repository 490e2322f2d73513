"""The inputs that a verification runs on: some, finite, and in batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from bayesbits.deploy.network import DeployedNetwork
from bayesbits.graph.trace import split_inputs

LARGEST_BATCH = 64
LARGEST_ELEMENTS = 2**22
"""Of all inputs of a batch together: what the network computes on the way is kept for a batch."""


@dataclass(frozen=True)
class Batch:
    """What the network is called with, and for how many examples."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    count: int


class Inputs:
    """The inputs of a verification, as for `attach`; a ValueError where nothing could be proven on them."""

    def __init__(self, inputs: Any, small: DeployedNetwork) -> None:
        self._whole = split_inputs(inputs)
        structure = small.integer.structure
        tensors = [leaf for leaf in tree_leaves(self._whole) if isinstance(leaf, Tensor)]
        if not tensors or not all(tensor.numel() for tensor in tensors):
            raise ValueError(
                "verify was given no inputs, and on none nothing is proven: pass examples that the network is used on, "
                "such as a batch of the test set"
            )
        _check_finite(dict(zip(structure.inputs, small.bind(*self._whole), strict=True)))
        self._count = tensors[0].shape[0] if tensors[0].dim() else 1
        self._dynamic = structure.dynamic_batch
        each = sum(tensor.numel() for tensor in tensors) // self._count
        self._size = max(1, min(LARGEST_BATCH, LARGEST_ELEMENTS // each))
        if not self._dynamic:
            shapes = [shape for shape in structure.input_shapes if shape]
            self._size = shapes[0][0] if shapes else 1
            if self._count % self._size:
                raise ValueError(
                    f"the network takes batches of {self._size}, as its code fixes their size, and {self._count} "
                    f"examples are no whole number of those: pass {max(1, self._count // self._size) * self._size}"
                )

    def batches(self) -> Iterator[Batch]:
        """All examples, batch by batch."""
        for start in range(0, self._count, self._size):
            yield self._part(start, min(self._size, self._count - start))

    def few(self) -> Batch:
        """As few examples as the network takes; two at least where there are two."""
        return self._part(0, min(2, self._count) if self._dynamic else self._size)

    def _part(self, start: int, count: int) -> Batch:
        def part(tensor: Tensor) -> Tensor:
            whole = tensor.dim() and tensor.shape[0] == self._count
            return tensor[start : start + count] if whole else tensor

        args, kwargs = tree_map_only(Tensor, part, self._whole)
        return Batch(args, kwargs, count)


def _check_finite(inputs: dict[str, Any]) -> None:
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise ValueError(
                f"the input {name!r} has {int((~torch.isfinite(value)).sum())} values that are not finite: what a "
                "runtime makes of them is its own affair, and nothing can be proven; leave such examples out"
            )
