"""A mode in which a network's own code runs in float64, even where the code asks for float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from bayesbits.utils.torch_private import tree_map

_FLOAT_METHODS = (Tensor.float, Tensor.double)


class Float64Mode(TorchFunctionMode):
    """Converts every float32 tensor to float64 before a function of torch reads it, and the dtype float32 likewise.

    The conversion is exact, so that only results are rounded, to 53 bits. A function that writes into a tensor keeps
    the dtype of that tensor.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if func in _FLOAT_METHODS:
            return args[0].to(torch.float64)
        if name.startswith("__get__") or name in ("__set__", "dim", "size"):
            return func(*args, **given)
        if _writes(name) and args and isinstance(args[0], Tensor):
            rest, given = tree_map(lambda value: _cast_like(value, args[0]), (args[1:], given))
            return func(args[0], *rest, **given)
        wide_args, wide_kwargs = tree_map(_widened, (args, given))
        return _widened(func(*wide_args, **wide_kwargs))  # functions that create tensors return float32 by default


def _writes(name: str) -> bool:
    return name == "__setitem__" or name.startswith("__i") or (name.endswith("_") and not name.startswith("_"))


def _widened(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype == torch.float32:
        return value.double()
    return torch.float64 if value is torch.float32 else value


def _cast_like(value: Any, written: Tensor) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point() and written.is_floating_point():
        return value.to(written.dtype)
    return value
