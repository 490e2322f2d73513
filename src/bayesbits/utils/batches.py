"""What a batch is, and how a model is called with it.

The inputs of a model are a tensor, a tuple or list of positional inputs, or a mapping of keyword inputs. They may hold
anything; their tensors with at least one dimension have the examples along the first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.utils.torch_private import tree_leaves


def split_inputs(inputs: Any, name: str = "example_inputs") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and the keyword inputs of a call; raises a TypeError that calls them `name`."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    raise TypeError(
        f"{name} is a {type(inputs).__name__}; give a tensor, a tuple of positional inputs, or a dict of keyword inputs"
    )


def call_model(model: nn.Module, inputs: Any) -> Any:
    """The model's output for the inputs of a batch; an object of another class is its only input."""
    if not isinstance(inputs, Tensor | tuple | list | Mapping):
        return model(inputs)
    args, kwargs = split_inputs(inputs)
    return model(*args, **kwargs)


def call_without_labels(model: nn.Module, batch: Any) -> Any:
    """The model's output for a batch without labels.

    Raises a TypeError for a batch of another form, and one that asks for labels where the model does not take the
    positional inputs.
    """
    args, kwargs = split_inputs(batch, "a batch")
    try:
        return model(*args, **kwargs)
    except TypeError as error:
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            raise
        raise TypeError(
            f"the model did not take the {len(batch)} elements of a batch as its positional inputs ({error}); "
            "where batches hold labels too, pass only the inputs: `(x for x, _ in loader)`"
        ) from error


def batched_tensors(batch: Any) -> list[Tensor]:
    """The tensors of a batch that hold examples."""
    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim() > 0]


def count_examples(batch: Any) -> int:
    """How many examples a batch holds: the length of its first tensor."""
    tensors = batched_tensors(batch)
    if not tensors:
        raise ValueError(f"a batch holds no tensor of examples: it is a {type(batch).__name__}")
    return len(tensors[0])


def all_examples_equal(batches: Iterable[Any]) -> bool:
    """Whether every tensor of every batch repeats the first example of the first batch."""
    first: list[Tensor] | None = None
    for batch in batches:
        tensors = batched_tensors(batch)
        if first is None:
            first = [tensor[:1] for tensor in tensors]
        for tensor, example in zip(tensors, first, strict=False):
            if tensor.shape[1:] != example.shape[1:] or bool((tensor != example.to(tensor.device)).any()):
                return False
    return True


def to_device(value: Any, device: torch.device) -> Any:
    """Tensors, and tensors in tuples, lists and mappings, on a device; anything else unchanged."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {key: to_device(entry, device) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return tuple(to_device(entry, device) for entry in value)
    return value
