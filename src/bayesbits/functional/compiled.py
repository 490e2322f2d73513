"""The plain definition, compiled: one pass over memory each way on the CPU.

Compiling takes a C++ compiler and a few seconds for each combination of widths, dtype and sign that is used for the
first time on a machine (torch keeps the result on disk). So a combination is compiled when it has run often, or from
the start where much work is known to come (`expecting`), and the log says so where it takes long. Where there is no
compiler, or it fails, the definition runs as it is, more slowly, and the log says so once.
"""

import functools
import itertools
import logging
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from bayesbits.functional import reference
from bayesbits.utils.torch_private import compiler_failed, find_cpp_compiler, mark_dynamic

_log = logging.getLogger("bayesbits")

# Below this many elements the definition's own operations fit into the cache and compiling gains little.
SMALLEST = 2**16

# A combination that runs more often than this is worth compiling: that takes seconds, and saves milliseconds each time.
WORTH = 1000

# A compilation that takes longer than this is told of, in seconds.
_SILENCE = 3.0

_runs: Counter[tuple[Any, ...]] = Counter()
_expected: int | None = None
_last_was_compiled = False

Gradients = tuple[Tensor, Tensor | None, Tensor | None]


@functools.cache
def available() -> bool:
    """Whether torch finds a C++ compiler."""
    try:
        find_cpp_compiler()
    except Exception as error:  # whatever torch raises where it finds none
        _warn(f"no C++ compiler was found ({error})")
        return False
    return True


@functools.cache
def _warn(reason: str) -> None:
    _log.warning("%s: quantizers run uncompiled on the CPU, several times slower", reason)


def was_compiled() -> bool:
    """Whether the latest run was a compiled one."""
    return _last_was_compiled


@contextmanager
def expecting(runs: int) -> Iterator[None]:
    """Inside the block every combination runs so often: it is compiled from the start, or not at all.

    A training that goes on from a checkpoint then computes as it would have done.
    """
    global _expected
    before, _expected = _expected, runs
    try:
        yield
    finally:
        _expected = before


@contextmanager
def _telling() -> Iterator[None]:
    """Say what takes so long, if it does."""
    message = "compiling the quantizers for this CPU, once: torch keeps the result for the next time"
    timer = threading.Timer(_SILENCE, _log.warning, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@functools.cache
def _specialize(function: Callable[..., Any], *key: Any) -> Callable[..., Any]:
    """A compiled copy of `function` for one combination of options.

    The compiler counts recompilations by code object and gives up after a few; so every combination has its own.
    """
    return torch.compile(with_own_code(function), fullgraph=True)


def with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a function with a code object of its own, by which the compiler counts."""
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_numbers)}")
    return types.FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)


_numbers = itertools.count()
_compiled: set[tuple[Any, ...]] = set()


def _run(function: Callable[..., Any], matrices: tuple[Tensor, ...], beta: Tensor, gates: Tensor, *options: Any) -> Any:
    """Call the compiled `function`: one compilation for any number of columns, and of rows above one."""
    x = matrices[-1]
    for matrix in matrices:
        mark_dynamic(matrix, [0, 1] if len(matrix) > 1 else [1])
    key = (function, x.dtype, beta.dtype, gates.dtype, len(x) == 1, *options)
    _runs[key] += 1
    global _last_was_compiled
    _last_was_compiled = False
    if (_runs[key] if _expected is None else _expected) <= WORTH:
        return function(*matrices, beta, gates, *options)
    compiled = _specialize(*key)
    try:
        with nullcontext() if key in _compiled else _telling():
            result = compiled(*matrices, beta, gates, *options)
        _compiled.add(key)
        _last_was_compiled = True
        return result
    except Exception as error:
        if not compiler_failed(error):
            raise
        _warn(f"compiling failed ({type(error).__name__}: {str(error).splitlines()[0]})")
        return function(*matrices, beta, gates, *options)


def forward(
    x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], dtype: torch.dtype | None = None
) -> Tensor:
    """As `reference.forward`, on a dense matrix x with one range a row."""
    result: Tensor = _run(reference.forward, (x,), beta, gates, signed, bits, dtype)
    return result


def backward(
    grad: Tensor, x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], sums_needed: bool = True
) -> Gradients:
    """As `reference.backward`, on a dense matrix x with one range a row."""
    result: Gradients = _run(reference.backward, (grad, x), beta, gates, signed, bits, sums_needed)
    return result
