"""The inputs that a verification runs on: some, finite, and in batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.signature import bind
from bayesbits.records.integer_network import Structure
from bayesbits.utils.batches import split_inputs
from bayesbits.utils.torch_private import tree_leaves, tree_map_only

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
    """The inputs of a verification, as for `attach`; a ValueError where nothing could be proven on them.

    They are copied to the CPU, in the precision in which the deployed network takes them.
    """

    def __init__(self, inputs: Any, small: DeployedNetwork) -> None:
        whole = tree_map_only(Tensor, lambda x: x.detach().cpu(), split_inputs(inputs))  # each place another object
        structure = small.integer.structure
        tensors = [leaf for leaf in tree_leaves(whole) if isinstance(leaf, Tensor)]
        if not tensors or not all(tensor.numel() for tensor in tensors):
            raise ValueError(
                "verify was given no inputs, and on none nothing is proven: pass examples that the network is used on, "
                "such as a batch of the test set"
            )
        numbers = {id(tensor): number for number, tensor in enumerate(bind(structure.takes, *whole))}
        self._tensors = small.bind(*whole)
        self._whole = tree_map_only(Tensor, lambda x: _Place(numbers[id(x)]), whole)
        _check_finite(dict(zip(structure.inputs, self._tensors, strict=True)))
        self._dynamic = structure.dynamic_batch
        if self._dynamic:
            self._cut = structure.batched
            self._rows = _count_examples(structure, self._tensors)
            each = sum(x.numel() for x, cut in zip(self._tensors, self._cut, strict=True) if cut) // self._rows
            self._sizes = [max(1, min(LARGEST_BATCH, LARGEST_ELEMENTS // each))] * len(self._tensors)
            self._steps = -(-self._rows // self._sizes[0])
        else:
            self._steps, self._cut = _count_calls(structure, self._tensors)
            self._sizes = [shape[0] if shape else 1 for shape in structure.input_shapes]

    def batches(self) -> Iterator[Batch]:
        """All examples, batch by batch."""
        for step in range(self._steps):
            yield self._part(step, self._sizes)

    def few(self) -> Batch:
        """As few examples as the network takes; two at least where there are two."""
        return self._part(0, [min(2, size) for size in self._sizes] if self._dynamic else self._sizes)

    def _part(self, step: int, sizes: list[int]) -> Batch:
        """The inputs of one call; of a network that takes one size alone it is not known what an example is."""
        parts = [
            x[step * size : (step + 1) * size] if cut else x
            for x, cut, size in zip(self._tensors, self._cut, sizes, strict=True)
        ]
        args, kwargs = tree_map_only(_Place, lambda place: parts[place.number], self._whole)
        count = next(len(x) for x, cut in zip(parts, self._cut, strict=True) if cut) if self._dynamic else 1
        return Batch(args, kwargs, count)


@dataclass(frozen=True)
class _Place:
    """Where an input belongs."""

    number: int


def _count_examples(structure: Structure, tensors: list[Tensor]) -> int:
    """How many examples these are; raises where an input is not shaped as the network takes it."""
    counts: dict[str, int] = {}
    stored = zip(structure.inputs, structure.input_shapes, structure.batched, tensors, strict=True)
    for name, shape, batched, tensor in stored:
        if tensor.dim() != len(shape) or tuple(tensor.shape[batched:]) != shape[batched:]:
            raise _other_shape(name, ("any", *shape[1:]) if batched else shape, tensor)
        if batched:
            counts[name] = len(tensor)
    first, *others = counts
    for name in others:
        if counts[name] != counts[first]:
            raise ValueError(
                f"the input {name!r} has {counts[name]} examples, and {first!r} has {counts[first]}: pass as many of "
                "each. Where one of them is no batch, attach with a batch of another size than its first one"
            )
    return counts[first]


def _count_calls(structure: Structure, tensors: list[Tensor]) -> tuple[int, tuple[bool, ...]]:
    """For a network that takes one size alone: how many calls these inputs make, and which of them are cut for that."""
    calls, cut = 1, []
    for name, shape, tensor in zip(structure.inputs, structure.input_shapes, tensors, strict=True):
        whole = tuple(tensor.shape) == shape
        cut.append(not whole)
        if whole:
            continue
        if not shape or tensor.dim() != len(shape) or tuple(tensor.shape[1:]) != shape[1:]:
            raise _other_shape(name, shape, tensor)
        number, rest = divmod(len(tensor), shape[0])
        if rest or calls not in (1, number):
            fitting = max(1, number if calls == 1 else calls) * shape[0]
            raise ValueError(
                f"the network takes {name!r} in batches of {shape[0]}, as its code fixes their size, and "
                f"{len(tensor)} examples are not {'a whole number' if calls == 1 else calls} of those: pass {fitting}"
            )
        calls = number
    return calls, tuple(cut)


def _other_shape(name: str, shape: tuple[Any, ...], tensor: Tensor) -> ValueError:
    sizes, given = (" x ".join(map(str, each)) or "a single number" for each in (shape, tensor.shape))
    return ValueError(
        f"the input {name!r} has the shape {given}, and the network takes {sizes}, as it was attached: pass inputs of "
        "that shape, or attach and deploy once more with inputs of the other one"
    )


def _check_finite(inputs: dict[str, Any]) -> None:
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise ValueError(
                f"the input {name!r} has {int((~torch.isfinite(value)).sum())} values that are not finite: what a "
                "runtime makes of them is its own affair, and nothing can be proven; leave such examples out"
            )
