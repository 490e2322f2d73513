"""The inputs of a verification: checked, and split into batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.signature import bind
from bayesbits.records.dynamic_size import check_shapes
from bayesbits.records.integer_network import Structure
from bayesbits.utils.batches import split_inputs
from bayesbits.utils.torch_private import tree_leaves, tree_map_only

LARGEST_BATCH = 64
LARGEST_ELEMENTS = 2**19
"""Of all inputs of a batch together, such as three photos. The intermediate values of one batch are kept in memory, and
large ones take longer to allocate than to compute."""


@dataclass(frozen=True)
class Batch:
    """The arguments of one call of the network, and the number of examples in them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    count: int


class Inputs:
    """The inputs of a verification, as for `attach`; a ValueError where they are empty, not finite or misshapen.

    They are copied to the CPU, in the dtypes that the deployed network takes.
    """

    calls: int
    """The number of batches."""

    def __init__(self, inputs: Any, small: DeployedNetwork) -> None:
        call = split_inputs(inputs, "inputs")
        whole = tree_map_only(Tensor, lambda x: x.detach().cpu(), call)  # a tensor that is given twice becomes two
        structure = small.integer.structure
        tensors = [leaf for leaf in tree_leaves(whole) if isinstance(leaf, Tensor)]
        if not tensors or not all(tensor.numel() for tensor in tensors):
            raise ValueError(
                "verify was given no inputs, and on none nothing is proven: pass examples that the network is used on, "
                "such as a batch of the test set"
            )
        numbers = {id(tensor): number for number, tensor in enumerate(bind(structure.takes, *whole))}
        self._tensors = small.bind(*whole, any_shape=True)
        self._containers = tree_map_only(Tensor, lambda x: _Index(numbers[id(x)]), whole)
        _check_finite(dict(zip(structure.inputs, self._tensors, strict=True)))
        self._dynamic = structure.dynamic_batch
        if self._dynamic:
            self._split = structure.batched
            self._rows = _count_examples(structure, self._tensors)
            each = sum(x.numel() for x, split in zip(self._tensors, self._split, strict=True) if split) // self._rows
            self._sizes = [max(1, min(LARGEST_BATCH, LARGEST_ELEMENTS // each))] * len(self._tensors)
            self.calls = -(-self._rows // self._sizes[0])
        else:
            self.calls, self._split = _count_calls(structure, self._tensors)
            self._sizes = [shape[0] if shape else 1 for shape in structure.input_shapes]

    def batches(self) -> Iterator[Batch]:
        """All examples, batch by batch."""
        for call in range(self.calls):
            yield self._batch(call, self._sizes)

    def smallest_batch(self) -> Batch:
        """Two examples where the network takes batches of any size, and otherwise its own batch size."""
        return self._batch(0, [min(2, size) for size in self._sizes] if self._dynamic else self._sizes)

    def _batch(self, call: int, sizes: list[int]) -> Batch:
        """The inputs of one call; a call of a network with a fixed batch size counts as one example."""
        parts = [
            x[call * size : (call + 1) * size] if split else x
            for x, split, size in zip(self._tensors, self._split, sizes, strict=True)
        ]
        args, kwargs = tree_map_only(_Index, lambda leaf: parts[leaf.index], self._containers)
        count = next(len(x) for x, split in zip(parts, self._split, strict=True) if split) if self._dynamic else 1
        return Batch(args, kwargs, count)


@dataclass(frozen=True)
class _Index:
    """Stands for a tensor in the containers of a call."""

    index: int


def _count_examples(structure: Structure, tensors: list[Tensor]) -> int:
    """The number of examples; raises where an input has another shape than the network takes."""
    counts: dict[str, int] = {}
    dynamic = structure.dynamic_places
    stored = zip(structure.inputs, structure.input_shapes, structure.batched, tensors, strict=True)
    for number, (name, shape, batched, tensor) in enumerate(stored):
        sizes = ["any" if (number, dim) in dynamic else size for dim, size in enumerate(shape)]
        if tensor.dim() != len(shape) or any(
            size not in ("any", given) for size, given in zip(sizes, tensor.shape, strict=True)
        ):
            raise _wrong_shape(name, tuple(sizes), tensor)
        if batched:
            counts[name] = len(tensor)
    first, *others = counts
    for name in others:
        if counts[name] != counts[first]:
            raise ValueError(
                f"the input {name!r} has {counts[name]} examples, and {first!r} has {counts[first]}: pass as many of "
                "each. Where one of them is no batch, attach with a batch of another size than its first one"
            )
    if structure.sizes is not None:
        check_shapes(structure.inputs, structure.input_shapes, structure.sizes, tensors)
    return counts[first]


def _count_calls(structure: Structure, tensors: list[Tensor]) -> tuple[int, tuple[bool, ...]]:
    """For a network with a fixed batch size: the number of calls, and which inputs are split into as many parts."""
    calls, split, dynamic = 1, [], structure.dynamic_places
    for number, (name, shape, tensor) in enumerate(zip(structure.inputs, structure.input_shapes, tensors, strict=True)):
        given = dict(enumerate(tensor.shape))  # sizes that may change are those of the inputs
        shape = tuple(given.get(dim, size) if (number, dim) in dynamic else size for dim, size in enumerate(shape))
        whole = tuple(tensor.shape) == shape
        split.append(not whole)
        if whole:
            continue
        if not shape or tensor.dim() != len(shape) or tuple(tensor.shape[1:]) != shape[1:]:
            raise _wrong_shape(name, shape, tensor)
        times, rest = divmod(len(tensor), shape[0])
        if rest or calls not in (1, times):
            fitting = max(1, times if calls == 1 else calls) * shape[0]
            raise ValueError(
                f"the network takes {name!r} in batches of {shape[0]}, as its code fixes their size, and "
                f"{len(tensor)} examples are not {'a whole number' if calls == 1 else calls} of those: pass {fitting}"
            )
        calls = times
    return calls, tuple(split)


def _wrong_shape(name: str, shape: tuple[Any, ...], tensor: Tensor) -> ValueError:
    sizes, given = (" x ".join(map(str, each)) or "a single number" for each in (shape, tensor.shape))
    return ValueError(
        f"the input {name!r} has the shape {given}, and the network takes {sizes}, as it was attached: pass inputs of "
        "that shape, or attach and deploy once more with inputs of the other one"
    )


def _check_finite(inputs: dict[str, Any]) -> None:
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise ValueError(
                f"the input {name!r} has {int((~torch.isfinite(value)).sum())} values that are not finite: runtimes "
                "compute different results for them, and nothing can be proven; leave such examples out"
            )
