"""The grid: the integer codes that a range and a bit width allow, and rounding to them.

A range [alpha, beta] has alpha = -beta when signed and alpha = 0 when not. With b bits the step between two grid points
is s_b = (beta - alpha) / (2^b - 1). Signed codes are symmetric and use the narrow range (2 bits: -1..1, 4 bits: -7..7,
8 bits: -127..127); unsigned codes are 0..2^b - 1.

Codes are found by dividing by the step. Multiplying by its inverse looks the same and is not: for one range in fifty
the largest value then rounds to a code outside of the grid.
"""

import itertools

import torch
from torch import Tensor

# Values are clipped a hair inside the range (section 2.4 of the paper): signed ranges end on a half step, and a
# value of exactly beta would round up to a code that does not exist.
EDGE = 1 - 1e-7

MIN_BITS = 2
MAX_BITS = 32
INTEGER_BITS = 8  # up to here weights and activations are computed with as integers when deployed


def check_bits(bits: tuple[int, ...]) -> None:
    """Raise unless `bits` is a non-empty increasing tuple of widths from 2 to 32."""
    if not bits or any(not isinstance(b, int) or isinstance(b, bool) for b in bits):
        raise ValueError(f"bits must be a non-empty sequence of integers such as (2, 4, 8), got {bits!r}")
    if any(low >= high for low, high in itertools.pairwise(bits)):
        raise ValueError(f"bits must increase strictly, got {bits!r}")
    if bits[0] < MIN_BITS or bits[-1] > MAX_BITS:
        raise ValueError(f"every width must lie between {MIN_BITS} and {MAX_BITS} bits, got {bits!r}")


def arithmetic_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision in which a tensor of `dtype` is quantized: float32, or float64 for float64."""
    if not dtype.is_floating_point:
        raise TypeError(f"only floating point tensors can be quantized, got {dtype}")
    return torch.float64 if dtype == torch.float64 else torch.float32


def has_grid(bits: int, dtype: torch.dtype) -> bool:
    """Whether arithmetic in `dtype` can tell all codes of this width apart; where not, quantizing is clipping."""
    return bits <= (53 if dtype == torch.float64 else 24)


def code_bounds(bits: int, signed: bool) -> tuple[int, int]:
    """The smallest and the largest code of the grid.

    Args:
        bits: The width.
        signed: Whether the range is [-beta, beta]; otherwise it is [0, beta].

    Returns:
        Both codes; signed codes are symmetric.

    Example::

        >>> from bayesbits.functional import code_bounds
        >>> code_bounds(4, signed=True), code_bounds(4, signed=False)
        ((-7, 7), (0, 15))
    """
    largest = 2 ** (bits - 1) - 1 if signed else 2**bits - 1
    return (-largest if signed else 0), largest


def step_size(beta: Tensor, bits: int, signed: bool) -> Tensor:
    """The distance between two neighboring grid points: s_b = (beta - alpha) / (2^b - 1).

    Args:
        beta: The end of the range, of any shape.
        bits: The width.
        signed: Whether the range is [-beta, beta]; otherwise it is [0, beta].

    Returns:
        A tensor in the shape and dtype of beta.

    Example::

        >>> import torch
        >>> from bayesbits.functional import step_size
        >>> step_size(torch.tensor(1.5), 2, signed=True)
        tensor(1.)
    """
    span = beta * 2 if signed else beta
    # The divisor is a tensor because torch on CUDA multiplies by the inverse of a number.
    return span / torch.full_like(span, 2**bits - 1)


def clip(x: Tensor, beta: Tensor, signed: bool) -> Tensor:
    """x inside the range; NaN stays NaN."""
    upper = beta * EDGE
    lower = -upper if signed else torch.zeros_like(upper)
    return torch.clamp(x, lower, upper)


def round_to_codes(clipped: Tensor, beta: Tensor, bits: int, signed: bool) -> Tensor:
    """Codes of values that are clipped already, as whole numbers in the arithmetic's own dtype."""
    codes = torch.round(clipped / step_size(beta, bits, signed))
    # With correctly rounded division this changes nothing (a test goes through every float32 mantissa). A compiler for
    # GPUs may divide less exactly, and the grid must not be left there either.
    low, high = code_bounds(bits, signed)
    return torch.clamp(codes, float(low), float(high))


def quantize_to_codes(x: Tensor, beta: Tensor, *, bits: int, signed: bool) -> Tensor:
    """The integer codes of x: x clipped to the range, divided by the step, and rounded half to even.

    Args:
        x: A floating-point tensor.
        beta: The end of the range, in a shape that broadcasts against x.
        bits: The width.
        signed: Whether the range is [-beta, beta]; otherwise it is [0, beta].

    Returns:
        The codes in int32, or in int64 where unsigned codes of 32 bits need it.

    Raises:
        ValueError: The dtype of x cannot hold a grid of this width: float32 holds up to 24 bits.

    Example::

        >>> import torch
        >>> from bayesbits.functional import quantize_to_codes
        >>> quantize_to_codes(torch.tensor([-9.0, 0.4, 0.6]), torch.tensor(1.5), bits=2, signed=True)
        tensor([-1,  0,  1], dtype=torch.int32)
    """
    check_bits((bits,))
    dtype = arithmetic_dtype(x.dtype)
    if not has_grid(bits, dtype):
        raise ValueError(
            f"{dtype} cannot hold a grid of {bits} bits: such a tensor stays float, or is given as float64"
        )
    beta = beta.to(dtype)
    codes = round_to_codes(clip(x.to(dtype), beta, signed), beta, bits, signed)
    return codes.to(torch.int64 if bits == MAX_BITS and not signed else torch.int32)


def dequantize(codes: Tensor, beta: Tensor, *, bits: int, signed: bool) -> Tensor:
    """The grid points of integer codes: codes times the step.

    Args:
        codes: Integer codes, as `quantize_to_codes` returns them.
        beta: The end of the range, in a shape that broadcasts against the codes.
        bits: The width.
        signed: Whether the range is [-beta, beta]; otherwise it is [0, beta].

    Returns:
        A tensor in the dtype of beta.

    Example::

        >>> import torch
        >>> from bayesbits.functional import dequantize
        >>> dequantize(torch.tensor([-1, 0, 1]), torch.tensor(1.5), bits=2, signed=True)
        tensor([-1.,  0.,  1.])
    """
    check_bits((bits,))
    return codes.to(beta.dtype) * step_size(beta, bits, signed)


def bias_codes(bias: Tensor, step: Tensor) -> Tensor:
    """A bias in whole numbers of input step times weight step, as an integer layer adds it; rounded in float64."""
    return torch.round(bias.double() / step.double())
