"""The few examples that there are: taken in once, and refused with a reason where nothing can be learned from them."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from bayesbits.utils.torch_private import tree_leaves

LEAST_EXAMPLES = 32


def take_batches(
    batches: Iterable[Any], *, labeled: bool, without: str = "loss='output' or loss='layers'"
) -> tuple[list[Any], list[Any]]:
    """Inputs and labels, batch by batch; without labels the second list is empty.

    With labels a batch is a pair of inputs and labels; without, it is what the model is called with. `without` says
    what to choose where there are no labels.
    """
    if isinstance(batches, Tensor | Mapping):
        kind = "tensor" if isinstance(batches, Tensor) else type(batches).__name__
        raise TypeError(f"batches are wanted, and this is one {kind}: pass x.split(64), or a list of batches")
    taken = list(batches)
    if _is_pair(taken):
        raise TypeError(
            "batches are wanted, and this is one pair of tensors, such as inputs and labels: pass "
            + ("list(zip(x.split(64), y.split(64)))" if labeled else "the inputs alone, x.split(64)")
        )
    if labeled:
        for index, batch in enumerate(taken):
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                raise ValueError(
                    f"batch {index} (the first is 0) has no labels: with loss='labels' a batch is a pair of inputs and "
                    f"labels. Without labels choose {without}"
                )
    inputs = [batch[0] for batch in taken] if labeled else taken
    _check(inputs)
    _check_finite(taken)
    return inputs, [batch[1] for batch in taken] if labeled else []


def count_examples(batch: Any) -> int:
    """How many examples a batch of inputs holds: the length of its first tensor."""
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim() > 0]
    if not tensors:
        raise ValueError(f"a batch holds no tensor of examples: it is a {type(batch).__name__}")
    return len(tensors[0])


def _check(inputs: list[Any]) -> None:
    count = sum(map(count_examples, inputs))
    if count < LEAST_EXAMPLES:
        raise ValueError(
            f"{count} examples are too few to learn from: give at least {LEAST_EXAMPLES}, better a few hundred"
        )
    if _all_the_same(inputs):
        raise ValueError(f"all {count} examples are the same: from constant data nothing can be learned")


def _check_finite(batches: list[Any]) -> None:
    for index, batch in enumerate(batches):
        for leaf in tree_leaves(batch):
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and not bool(leaf.isfinite().all()):
                raise ValueError(
                    f"batch {index} (the first is 0) has values that are NaN or infinite: leave such examples out, and "
                    "in a mask write large numbers in the place of infinity"
                )


def _is_pair(batches: list[Any]) -> bool:
    """Whether these are inputs and labels of all examples: two tensors as two batches of inputs never are."""
    if len(batches) != 2 or not all(isinstance(batch, Tensor) for batch in batches):
        return False
    return len({(batch.dim(), batch.is_floating_point()) for batch in batches}) == 2


def _all_the_same(inputs: list[Any]) -> bool:
    """Whether every tensor of every batch repeats the first example."""
    first = [leaf[:1] for leaf in tree_leaves(inputs[0]) if isinstance(leaf, Tensor) and leaf.dim() > 0]
    for batch in inputs:
        tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim() > 0]
        for tensor, example in zip(tensors, first, strict=False):
            if tensor.shape[1:] != example.shape[1:] or not bool(torch.all(tensor == example)):
                return False
    return True
