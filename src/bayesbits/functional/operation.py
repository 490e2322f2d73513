"""`gated_quantize`: checks, the choice of an implementation, and the autograd function around it."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bayesbits.functional import compiled, grid, reference

IMPLEMENTATIONS = ("torch", "compiled", "triton", "traced")

_forced: ContextVar[str | None] = ContextVar("bayesbits_implementation", default=None)


@contextmanager
def implementation(name: str) -> Iterator[None]:
    """Run `gated_quantize` inside the block with one implementation: "torch", "compiled", "triton" or "traced".

    "traced" is what compilers and exporters get to see: plain operations under autograd.
    """
    if name not in IMPLEMENTATIONS:
        raise ValueError(f"implementation must be one of {', '.join(IMPLEMENTATIONS)}, got {name!r}")
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)


@functools.cache
def _triton() -> ModuleType | None:
    try:
        from bayesbits.functional import triton_kernels
    except ImportError:
        return None
    return triton_kernels


def _choose(x: Tensor, rows: int = 1) -> ModuleType:
    """Triton for eager CUDA, the compiled definition for large tensors on the CPU, the definition for the rest."""
    name = _forced.get()
    triton = _triton() if name == "triton" or (name is None and x.is_cuda) else None
    if name == "triton" and triton is None:
        raise RuntimeError("implementation 'triton' was asked for, and triton cannot be imported")
    if triton is not None and triton.supports(x, rows):
        return triton
    if name == "compiled" or (name is None and x.device.type == "cpu" and x.numel() >= compiled.SMALLEST):
        return compiled if compiled.available() else reference
    return reference


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
    if not _is_dense(x):
        x = x.clone()
    return x.contiguous() if rows > 1 and x.stride(0) * rows != x.numel() else x


def _matrix(dense: Tensor, rows: int) -> Tensor:
    """A dense tensor in the order of its memory, one row a range."""
    return dense.as_strided((rows, dense.numel() // rows), (dense.numel() // rows, 1))


def _shaped_like(matrix: Tensor, dense: Tensor) -> Tensor:
    """A matrix back in the shape and strides of `dense`; not as a view, which in-place operations would refuse."""
    return matrix.new_empty(0).set_(matrix.untyped_storage(), 0, dense.shape, dense.stride())


def _as_plain_operations(x: Tensor) -> bool:
    """Where a compiler or an exporter looks, it shall see the definition; and there is no kernel for no elements."""
    if torch.compiler.is_compiling() or type(x) not in (Tensor, torch.nn.Parameter) or x.numel() == 0:
        return True
    return _forced.get() == "traced"


class _GatedQuantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, beta: Tensor, gates: Tensor, signed: bool, bits: tuple[int, ...]) -> Tensor:
        ctx.save_for_backward(x, beta, gates)
        ctx.signed, ctx.bits = signed, bits
        # Detached: a compiler looks into the history of what it is given.
        x, beta, gates = x.detach(), beta.detach(), gates.detach()
        rows = beta.numel()
        dense = _dense(x, rows)
        ctx.implementation = _choose(x, rows)  # remembered, as backward may run in another thread
        y = ctx.implementation.forward(_matrix(dense, rows), beta.reshape(-1, 1), gates, signed, bits)
        return _shaped_like(y, dense)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, beta, gates = (tensor.detach() for tensor in ctx.saved_tensors)
        options = (ctx.signed, ctx.bits, ctx.needs_input_grad[1] or ctx.needs_input_grad[2])
        rows = beta.numel()
        dense = _dense(x, rows)
        if grad.stride() != dense.stride():
            grad = torch.empty_like(dense).copy_(grad)
        matrices = _matrix(grad, rows), _matrix(dense, rows)
        dx, dbeta, dgates = ctx.implementation.backward(*matrices, beta.reshape(-1, 1), gates, *options)
        dx = _shaped_like(dx, dense)
        return dx, None if dbeta is None else dbeta.reshape(beta.shape), dgates, None, None


def _broadcast(beta: Tensor, x: Tensor) -> Tensor:
    """beta in a shape that broadcasts against x: a scalar, or one range for each index of axis 0."""
    return beta.reshape(-1, *[1] * (x.dim() - 1)) if beta.numel() > 1 else beta.reshape(())


def gated_quantize(
    x: Tensor,
    beta: Tensor | float,
    gates: Tensor | Sequence[Tensor | float],
    *,
    signed: bool,
    bits: Sequence[int] = (2, 4, 8, 16, 32),
) -> Tensor:
    """Quantize x by a gated mixture of widths: z_2 (x_2 + z_4 (eps_4 + z_8 (eps_8 + ...))).

    `beta` is the end of the range: one number, or one for each index of axis 0. `gates` holds one value for each width,
    the first switching the whole tensor. Gates of 0 and 1 give exactly the codes of one width. Gradients reach x
    (straight through inside of the range), beta and the gates. The result has the dtype and strides of x.
    """
    bits = tuple(bits)
    grid.check_bits(bits)
    grid.arithmetic_dtype(x.dtype)
    if not isinstance(gates, Tensor):
        gates = torch.stack([torch.as_tensor(gate, dtype=torch.float32, device=x.device) for gate in gates])
    if gates.shape != (len(bits),):
        raise ValueError(
            f"{len(bits)} widths {bits} need a vector of {len(bits)} gates, got shape {tuple(gates.shape)}"
        )
    if not isinstance(beta, Tensor):
        beta = torch.tensor(check_range(beta), dtype=grid.arithmetic_dtype(x.dtype), device=x.device)
    if beta.numel() != 1 and (beta.numel() != beta.shape[0] or x.dim() == 0 or beta.numel() != x.shape[0]):
        raise ValueError(
            f"beta must be one number or one for each of axis 0 of x; x has shape {tuple(x.shape)}, "
            f"beta {tuple(beta.shape)}"
        )
    if _as_plain_operations(x):
        return reference.differentiable(x, _broadcast(beta, x), gates, signed, bits)
    result: Tensor = _GatedQuantize.apply(x, beta, gates, signed, bits)  # type: ignore[no-untyped-call]
    return result


# Outside of these, steps of 16 bits leave the normal numbers of float32.
SMALLEST_RANGE, LARGEST_RANGE = 1e-30, 1e30


def check_range(beta: float) -> float:
    """Raise unless beta is a finite positive number that float32 arithmetic can divide into steps."""
    if not SMALLEST_RANGE <= beta <= LARGEST_RANGE:
        raise ValueError(f"a range must be a number from {SMALLEST_RANGE} to {LARGEST_RANGE}, got {beta}")
    return beta
