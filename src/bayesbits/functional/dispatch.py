"""The choice of the implementation that runs `gated_quantize`, and the layout in which it gets its tensors."""

import functools
import importlib.util
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from types import ModuleType

import torch
from torch import Tensor

from bayesbits.functional import compiled, eager, reference

IMPLEMENTATIONS = ("torch", "eager", "compiled", "triton", "traced", "opaque")

# What the kernels take. float64 is left to the definition: nobody trains in it, and its grids need another rounding. So
# are more ranges than a launch has rows (the weight of a very large vocabulary, a range for each word).
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_ROWS = 65_535

# A kernel counts the elements of a row in int32 up to 2^31 - 1 of them, and loads a block of up to 2^24 elements ahead.
_INT32_END = 2**31
_AHEAD = 2**24

_TRITON_FOUND = importlib.util.find_spec("triton") is not None

_ran: Counter[str] = Counter()

_forced: ContextVar[str | None] = ContextVar("bayesbits_implementation", default=None)


@contextmanager
def implementation(name: str) -> Iterator[None]:
    """Run `gated_quantize` with one implementation inside a `with` block; for tests and measurements.

    Args:
        name: "torch" (the definition), "eager" (the definition block by block, for the CPU), "compiled" (the definition
            compiled for the CPU), "triton" (the kernels), "traced" (plain operations under autograd, as exporters and
            compilers for the CPU see them) or "opaque" (one operation, as compilers for the GPU see it).

    Raises:
        ValueError: There is no such implementation.

    Example::

        >>> import torch
        >>> from bayesbits.functional import gated_quantize, implementation
        >>> with implementation("torch"):
        ...     gated_quantize(torch.tensor([0.4]), 1.5, [1.0], signed=True, bits=(2,))
        tensor([0.])
    """
    if name not in IMPLEMENTATIONS:
        raise ValueError(f"implementation must be one of {', '.join(IMPLEMENTATIONS)}, got {name!r}")
    token = _forced.set(name)
    try:
        with compiled.expecting(compiled.MIN_RUNS + 1) if name == "compiled" else nullcontext():
            yield
    finally:
        _forced.reset(token)


@contextmanager
def watching() -> Iterator[Counter[str]]:
    """After the block, how often each implementation has run in it; runs inside compiled code are not counted."""
    before, seen = _ran.copy(), Counter[str]()
    try:
        yield seen
    finally:
        seen.update(_ran - before)


@functools.cache
def _triton() -> ModuleType | None:
    try:
        from bayesbits.functional import triton_launch
    except ImportError:
        return None
    return triton_launch


def has_kernel(x: Tensor, rows: int) -> bool:
    """Whether there is a kernel for x on its device. Compilers trace this function: it reads attributes only."""
    return _TRITON_FOUND and x.is_cuda and x.dtype in KERNEL_DTYPES and rows <= MOST_ROWS and x.numel() > 0


def kernel_can_count(elements: int, rows: int) -> bool:
    """Whether the kernels' offsets fit: rows into a launch, and the block ahead in a row into the row's integers."""
    return rows <= MOST_ROWS and not _INT32_END - _AHEAD <= elements // rows < _INT32_END


def choose(x: Tensor, rows: int = 1) -> ModuleType:
    """Triton for eager CUDA; on the CPU compiled or eager, by size; the definition for the rest."""
    name = None if _forced.get() == "opaque" else _forced.get()
    if name == "triton" and _triton() is None:
        raise RuntimeError("implementation 'triton' was asked for, and triton cannot be imported")
    wanted = name == "triton" or (name is None and x.is_cuda)
    takes = x.dtype in KERNEL_DTYPES and kernel_can_count(x.numel(), rows)
    if wanted and takes and (triton := _triton()) is not None:
        return triton
    if name == "compiled" or (name is None and x.device.type == "cpu" and x.numel() >= compiled.MIN_ELEMENTS):
        return compiled if compiled.available() else eager
    return eager if name in (None, "eager") and x.device.type == "cpu" else reference


def forced() -> str | None:
    """The implementation that the surrounding `implementation` block asks for."""
    return _forced.get()


def _is_dense(x: Tensor) -> bool:
    """Whether x fills its memory without gaps or overlaps, in any order of its axes."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _dense(x: Tensor, rows: int) -> Tensor:
    """x, or a copy of it, without gaps in memory and, where there are several ranges, with axis 0 outermost."""
    if x.is_contiguous():
        return x
    if not _is_dense(x):
        x = x.clone()
    return x.contiguous() if rows > 1 and x.stride(0) * rows != x.numel() else x


def _matrix(dense: Tensor, rows: int) -> Tensor:
    """A dense tensor in the order of its memory, one row a range."""
    return dense.as_strided((rows, dense.numel() // rows), (dense.numel() // rows, 1))


def _shaped_like(matrix: Tensor, dense: Tensor) -> Tensor:
    """A matrix in the shape and strides of `dense`; not as a view, which in-place operations would refuse."""
    return matrix.new_empty(0).set_(matrix.untyped_storage(), 0, dense.shape, dense.stride())


def run_forward(
    x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], chosen: ModuleType,
    dtype: torch.dtype | None = None, alpha: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """x_q by one implementation, in the shape and strides of x, and in its dtype unless another one is given."""
    rows = beta.numel()
    dense = _dense(x, rows)
    lower = () if alpha is None else (alpha.reshape(-1, 1),)
    result = chosen.forward(_matrix(dense, rows), beta.reshape(-1, 1), gates, signed, bits, dtype, *lower)
    uncompiled = chosen is compiled and not compiled.was_compiled()
    _ran[(eager if uncompiled else chosen).__name__.rpartition(".")[2]] += 1
    return _shaped_like(result, dense)


def run_backward(
    grad: Tensor, x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...], sums_needed: bool,
    chosen: ModuleType, alpha: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """The gradients by one implementation, in the shapes of x, beta, the gates and alpha."""
    rows = beta.numel()
    dense = _dense(x, rows)
    if grad.stride() != dense.stride():
        grad = torch.empty_like(dense, dtype=grad.dtype).copy_(grad)
    matrices = _matrix(grad, rows), _matrix(dense, rows)
    lower = () if alpha is None else (alpha.reshape(-1, 1),)
    found = chosen.backward(*matrices, beta.reshape(-1, 1), gates, signed, bits, sums_needed, *lower)
    dx, dbeta, dgates, dalpha = found
    dbeta = None if dbeta is None else dbeta.reshape(beta.shape)
    dalpha = None if dalpha is None or alpha is None else dalpha.reshape(alpha.shape)
    return _shaped_like(dx, dense), dbeta, dgates, dalpha
