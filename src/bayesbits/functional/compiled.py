"""The definition, compiled for the CPU: one pass over memory forward, and one backward.

Compiling needs a C++ compiler, and a few seconds for each combination of widths, dtype and sign that is used for the
first time on a machine (torch keeps the result on disk). A combination is compiled when it has run often, or from the
start where many runs are expected (`expecting`); a log message appears where this takes long. Where there is no
compiler, or it fails, the definition runs uncompiled (`functional.eager`), and the log says so once.
"""

import functools
import itertools
import logging
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from bayesbits.functional import eager, reference
from bayesbits.utils.torch_private import compiler_failed, find_cpp_compiler, mark_dynamic

_log = logging.getLogger("bayesbits")

# Below this many elements the definition's own operations fit into the cache and compiling gains little.
MIN_ELEMENTS = 2**16

# A combination that runs more often than this is compiled: that takes seconds, and saves milliseconds in each run.
MIN_RUNS = 1000

# A compilation that takes longer than this is logged, in seconds.
_LOG_AFTER = 3.0

_runs: Counter[tuple[Any, ...]] = Counter()
_expected: int | None = None
_last_was_compiled = False

Gradients = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]


@functools.cache
def available() -> bool:
    """Whether torch finds a C++ compiler."""
    try:
        find_cpp_compiler()
    except Exception as error:  # torch does not say which error it raises
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
    """Inside the block every combination is expected to run so often: it is compiled from the start, or not at all.

    A training that is resumed from a checkpoint then computes the same as one that was not interrupted.
    """
    global _expected
    before, _expected = _expected, runs
    try:
        yield
    finally:
        _expected = before


def never_compiled() -> AbstractContextManager[None]:
    """Inside the block nothing is compiled, so that equal runs give equal bits."""
    return expecting(0)


@contextmanager
def _log_if_slow() -> Iterator[None]:
    """Log a message where the block takes long."""
    message = "compiling the quantizers for this CPU, once: torch keeps the result for the next time"
    timer = threading.Timer(_LOG_AFTER, _log.warning, [message])
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


def _run(
    function: Callable[..., Any], uncompiled: Callable[..., Any], matrices: tuple[Tensor, ...], beta: Tensor,
    gates: Tensor, *options: Any, alpha: Tensor | None,
) -> Any:  # fmt: skip
    """Call the compiled `function`: one compilation for any number of columns, and of rows above one."""
    x = matrices[-1]
    for matrix in matrices:
        mark_dynamic(matrix, [0, 1] if len(matrix) > 1 else [1])
    key = (function, x.dtype, beta.dtype, gates.dtype, len(x) == 1, alpha is None, *options)
    ends = {} if alpha is None else {"alpha": alpha}
    _runs[key] += 1
    global _last_was_compiled
    _last_was_compiled = False
    if (_runs[key] if _expected is None else _expected) <= MIN_RUNS:
        return uncompiled(*matrices, beta, gates, *options, **ends)
    compiled = _specialize(*key)
    try:
        with nullcontext() if key in _compiled else _log_if_slow():
            result = compiled(*matrices, beta, gates, *options, **ends)
        _compiled.add(key)
        _last_was_compiled = True
        return result
    except Exception as error:
        if not compiler_failed(error):
            raise
        _warn(f"compiling failed ({type(error).__name__}: {str(error).splitlines()[0]})")
        return uncompiled(*matrices, beta, gates, *options, **ends)


def forward(
    x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], dtype: torch.dtype | None = None,
    alpha: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As `reference.forward`, on a dense matrix x with one range a row."""
    result: Tensor = _run(reference.forward, eager.forward, (x,), beta, gates, signed, bits, dtype, alpha=alpha)
    return result


def backward(
    grad: Tensor, x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], sums_needed: bool = True,
    alpha: Tensor | None = None,
) -> Gradients:  # fmt: skip
    """As `reference.backward`, on a dense matrix x with one range a row."""
    options = (signed, bits, sums_needed)
    result: Gradients = _run(reference.backward, eager.backward, (grad, x), beta, gates, *options, alpha=alpha)
    return result
