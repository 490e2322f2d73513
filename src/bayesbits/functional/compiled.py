"""The plain definition, compiled: one pass over memory each way on the CPU.

Compiling takes a C++ compiler and a few seconds for each combination of widths, dtype and sign that is used for the
first time on a machine (torch keeps the result on disk). Without a compiler the definition runs as it is, more slowly,
and the log says so once.
"""

import functools
import logging
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayesbits.functional import reference

_log = logging.getLogger("bayesbits")

# Below this many elements the definition's own operations fit into the cache and compiling gains little.
SMALLEST = 2**16


@functools.cache
def available() -> bool:
    """Whether torch finds a C++ compiler that works."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception as error:  # whatever torch raises where it finds none
        _log.warning(
            "no C++ compiler was found (%s): quantizers run uncompiled on the CPU, several times slower", error
        )
        return False
    return True


@functools.cache
def _specialise(function: Callable[..., Any], *key: Any) -> Callable[..., Any]:
    """A compiled copy of `function` for one combination of options.

    The compiler counts recompilations by code object and gives up after a few; so every combination has its own.
    """
    code = function.__code__.replace(co_name=f"{function.__name__}_{len(_specialised)}")
    _specialised.append(key)
    copy = types.FunctionType(code, function.__globals__, code.co_name, function.__defaults__)
    return torch.compile(copy, fullgraph=True)


_specialised: list[tuple[Any, ...]] = []


def _any_size(*matrices: Tensor) -> None:
    """Compile for every number of columns at once, and for every number of rows above one."""
    for matrix in matrices:
        torch._dynamo.maybe_mark_dynamic(matrix, [0, 1] if len(matrix) > 1 else [1])


def forward(x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...]) -> Tensor:
    """As `reference.forward`, on a dense matrix x with one range a row."""
    key = (x.dtype, beta.dtype, gates.dtype, len(x) == 1, signed, bits)
    _any_size(x)
    result: Tensor = _specialise(reference.forward, *key)(x, beta, gates, signed, bits)
    return result


def backward(
    grad: Tensor, x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], sums_needed: bool = True
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """As `reference.backward`, on a dense matrix x with one range a row."""
    key = (x.dtype, beta.dtype, gates.dtype, len(x) == 1, signed, bits, sums_needed)
    _any_size(grad, x)
    result: tuple[Tensor, Tensor | None, Tensor | None] = _specialise(reference.backward, *key)(
        grad, x, beta, gates, signed, bits, sums_needed
    )
    return result
