"""The examples of post-training: read once from the batches, and refused where nothing can be learned from them."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from bayesbits.utils.batches import all_examples_equal, count_examples
from bayesbits.utils.torch_private import tree_leaves

LEAST_EXAMPLES = 32


def take_batches(
    batches: Iterable[Any], *, labeled: bool, without: str = "loss='output' or another loss"
) -> tuple[list[Any], list[Any]]:
    """The inputs and the labels of all batches; without labels the second list is empty.

    With labels a batch is a pair of inputs and labels; without, it is the inputs of the model. `without` is what the
    error for missing labels suggests.
    """
    if isinstance(batches, Tensor | Mapping):
        kind = "tensor" if isinstance(batches, Tensor) else type(batches).__name__
        raise TypeError(f"batches are expected, and this is one {kind}: pass x.split(64), or a list of batches")
    taken = list(batches)
    if _is_pair(taken):
        raise TypeError(
            "batches are expected, and this is one pair of tensors, such as inputs and labels: pass "
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
    _check_enough(inputs)
    _check_finite(taken)
    return inputs, [batch[1] for batch in taken] if labeled else []


def _check_enough(inputs: list[Any]) -> None:
    count = sum(map(count_examples, inputs))
    if count < LEAST_EXAMPLES:
        raise ValueError(
            f"{count} examples are too few to learn from: give at least {LEAST_EXAMPLES}, better a few hundred"
        )
    if all_examples_equal(inputs):
        raise ValueError(f"all {count} examples are the same: nothing can be learned from constant data")


def _check_finite(batches: list[Any]) -> None:
    for index, batch in enumerate(batches):
        for leaf in tree_leaves(batch):
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and not bool(leaf.isfinite().all()):
                raise ValueError(
                    f"batch {index} (the first is 0) has values that are NaN or infinite: leave such examples out, and "
                    "in a mask write large numbers in the place of infinity"
                )


def _is_pair(batches: list[Any]) -> bool:
    """Whether these are the inputs and the labels of all examples: two tensors that are not two batches."""
    if len(batches) != 2 or not all(isinstance(batch, Tensor) for batch in batches):
        return False
    return len({(batch.dim(), batch.is_floating_point()) for batch in batches}) == 2
