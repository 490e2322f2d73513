"""A tensor that is computed from the parameters and buffers of modules alone, such as a standardized weight.

An expression holds the modules and the names of their tensors, so that it follows them when the network is moved,
loaded, copied or pickled. Its operations are those of an exported graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.utils.torch_private import OpOverload, tree_map_only


@dataclass(frozen=True)
class Value:
    """The value of a leaf or step of an expression, by its index; leaves come first."""

    index: int


@dataclass(frozen=True)
class Step:
    """One operation, by its full name, such as "aten.mul.Tensor"."""

    operation: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class TensorExpression:
    """A tensor by how it is computed; `evaluate` computes it, and gradients reach its leaves."""

    leaves: tuple[tuple[nn.Module, str], ...]
    """The modules and the names of their parameters or buffers."""
    steps: tuple[Step, ...]
    """The operations in their order; the last one gives the tensor, or without any, the last leaf is the tensor."""

    def evaluate(self) -> Tensor:
        """The tensor for the present values of the leaves."""
        values: list[Any] = [getattr(module, name) for module, name in self.leaves]
        for step in self.steps:
            args, kwargs = tree_map_only(Value, lambda value: values[value.index], (step.args, dict(step.kwargs)))
            values.append(_operation(step.operation)(*args, **kwargs))
        result: Tensor = values[-1]
        return result


def operation_key(target: Any) -> str | None:
    """The name under which a step stores an operation; None for functions that are no operations of torch."""
    if target is operator.getitem:
        return "getitem"
    return str(target) if isinstance(target, OpOverload) else None


def _operation(key: str) -> Callable[..., Any]:
    if key == "getitem":
        return operator.getitem
    namespace, name, overload = key.split(".")
    function: Callable[..., Any] = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    return function
