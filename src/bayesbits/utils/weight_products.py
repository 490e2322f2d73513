"""The functions of torch that multiply data with a weight: convolutions, linear layers and matrix products.

Reading a network finds their calls in its graph, and attaching finds the same calls again while the network runs. Both
name a call by the operation, the shape of the weight, and how many such calls of the same module came before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Signature:
    """Which of a function's arguments are the data, the weight and the bias."""

    names: tuple[str, ...]
    """The names of the tensors that the function takes, in their order."""
    data: int
    """The position of the data."""
    weight: int
    """The position of the weight."""
    bias: int | None
    """The position of the bias; None where the function adds none."""
    inputs_first: bool = False
    """Whether the weight is a matrix [inputs, outputs], and not [outputs, inputs] as a linear layer stores it."""


class ProductCall(NamedTuple):
    """A call of one of these functions inside a call of a module, its children included."""

    operation: str
    """The name of the function."""
    weight_shape: tuple[int, ...]
    """The shape of the weight that is multiplied."""
    number: int
    """How many calls of this function with a weight of this shape came before."""


CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
_LAYER = Signature(("input", "weight", "bias"), data=0, weight=1, bias=2)
SIGNATURES: Mapping[str, Signature] = {
    **dict.fromkeys((*CONVOLUTIONS, "linear"), _LAYER),
    "addmm": Signature(("input", "mat1", "mat2"), data=1, weight=2, bias=0, inputs_first=True),
    "mm": Signature(("input", "mat2"), data=0, weight=1, bias=None, inputs_first=True),
    "matmul": Signature(("input", "other"), data=0, weight=1, bias=None, inputs_first=True),
}
FUNCTIONS: Mapping[Any, str] = {
    **{getattr(F, name): name for name in (*CONVOLUTIONS, "linear")},
    **{getattr(owner, name): name for owner in (torch, Tensor) for name in ("addmm", "mm", "matmul")},
    Tensor.__matmul__: "matmul",
}


Bound = tuple[Any, Any, Any, tuple[Any, ...], dict[str, Any]]
"""Data, weight, bias, the other positional arguments and the keyword arguments of a call. A plain tuple: the compiler
of torch 2.11 does not trace attributes of an object that it has seen made."""


def bind(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Bound:
    """The arguments of a call of one of the `FUNCTIONS`, by what they are."""
    signature = SIGNATURES[FUNCTIONS[function]]
    tensors = [args[index] if index < len(args) else kwargs.get(name) for index, name in enumerate(signature.names)]
    bias = None if signature.bias is None else tensors[signature.bias]
    rest = args[len(signature.names) :]
    keywords = {name: value for name, value in kwargs.items() if name not in signature.names}
    return tensors[signature.data], tensors[signature.weight], bias, rest, keywords


def call(
    function: Any, data: Tensor, weight: Tensor, bias: Tensor | None, rest: tuple[Any, ...], keywords: dict[str, Any]
) -> Tensor:
    """Call one of the `FUNCTIONS` with these tensors; a bias that it does not take is added afterwards."""
    signature = SIGNATURES[FUNCTIONS[function]]
    tensors: list[Tensor | None] = [None] * len(signature.names)
    tensors[signature.data], tensors[signature.weight] = data, weight
    if signature.bias is not None:
        tensors[signature.bias] = bias
    result: Tensor = function(*tensors, *rest, **keywords)
    return result if bias is None or signature.bias is not None else result + bias
