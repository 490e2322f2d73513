"""The grid: the integer codes that a range and a bit width allow, and rounding to them.

A range [alpha, beta] has alpha = -beta when signed and alpha = 0 when not. With b bits the step between two grid points
is s_b = (beta - alpha) / (2^b - 1). Signed codes are symmetric and use the narrow range (2 bits: -1..1, 4 bits: -7..7,
8 bits: -127..127); unsigned codes are 0..2^b - 1.

An asymmetric range has two ends of its own, alpha <= 0 <= beta. Its codes reach from round(alpha / s_b) to
round(beta / s_b), which are 2^b codes, and zero is one of the grid points of every width. (Where both ends lie halfway
between two codes, these can be one less, or one more: then the largest is left out.) So codes are centered here too;
the zero point of other notations is -round(alpha / s_b), the number that makes the smallest code 0.

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
CODE_BITS = 16  # up to here they are stored as codes, and above in float


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


def step_size(beta: Tensor, bits: int, signed: bool, alpha: Tensor | None = None) -> Tensor:
    """The distance between two neighboring grid points: s_b = (beta - alpha) / (2^b - 1).

    Args:
        beta: The end of the range, of any shape.
        bits: The width.
        signed: Whether the range is [-beta, beta]; otherwise it is [0, beta].
        alpha: The lower end of an asymmetric range [alpha, beta], of the shape of beta; at most 0.

    Returns:
        A tensor in the shape and dtype of beta.

    Example::

        >>> import torch
        >>> from bayesbits.functional import step_size
        >>> step_size(torch.tensor(1.5), 2, signed=True)
        tensor(1.)
    """
    span = range_span(beta, signed, alpha)
    # The divisor is a tensor because torch on CUDA multiplies by the inverse of a number.
    return span / torch.full_like(span, 2**bits - 1)


def range_span(beta: Tensor, signed: bool, alpha: Tensor | None = None) -> Tensor:
    """beta - alpha."""
    if alpha is not None:
        return beta - alpha
    return beta * 2 if signed else beta


def asymmetric_code_bounds(alpha: Tensor, beta: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The smallest and the largest code of an asymmetric range, as whole numbers in the dtype of its ends.

    Args:
        alpha: The lower end of the range, at most 0.
        beta: The upper end of the range, at least 0.
        bits: The width.

    Returns:
        Both codes; 0 lies between them or is one of them.

    Example::

        >>> import torch
        >>> from bayesbits.functional import asymmetric_code_bounds
        >>> asymmetric_code_bounds(torch.tensor(-0.2), torch.tensor(1.3), 4)
        (tensor(-2.), tensor(13.))
    """
    step = step_size(beta, bits, True, alpha)
    low = torch.round(alpha / step)
    return low, torch.minimum(torch.round(beta / step), low + (2**bits - 1))


def clip(x: Tensor, beta: Tensor, signed: bool, alpha: Tensor | None = None) -> Tensor:
    """x inside the range; NaN stays NaN."""
    if alpha is not None:
        return torch.clamp(x, alpha, beta)
    upper = beta * EDGE
    lower = -upper if signed else torch.zeros_like(upper)
    return torch.clamp(x, lower, upper)


def round_to_codes(
    clipped: Tensor, beta: Tensor, bits: int, signed: bool, alpha: Tensor | None = None
) -> Tensor:  # fmt: skip
    """Codes of values that are clipped already, as whole numbers in the arithmetic's own dtype."""
    codes = torch.round(clipped / step_size(beta, bits, signed, alpha))
    if alpha is not None:
        return torch.clamp(codes, *asymmetric_code_bounds(alpha, beta, bits))
    # With correctly rounded division this changes nothing (a test goes through every float32 mantissa). A compiler for
    # GPUs may divide less exactly, and the grid must not be left there either.
    low, high = code_bounds(bits, signed)
    return torch.clamp(codes, float(low), float(high))


def quantize_to_codes(x: Tensor, beta: Tensor, *, bits: int, signed: bool, alpha: Tensor | None = None) -> Tensor:
    """The integer codes of x: x clipped to the range, divided by the step, and rounded half to even.

    Args:
        x: A floating-point tensor.
        beta: The end of the range, in a shape that broadcasts against x.
        bits: The width.
        signed: Whether the range is [-beta, beta]; otherwise it is [0, beta].
        alpha: The lower end of an asymmetric range [alpha, beta]; the code 0 is the number 0 there, too.

    Returns:
        The codes in int32, or in int64 where unsigned or asymmetric codes of 32 bits need it.

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
    beta, alpha = beta.to(dtype), None if alpha is None else alpha.to(dtype)
    codes = round_to_codes(clip(x.to(dtype), beta, signed, alpha), beta, bits, signed, alpha)
    return codes.to(torch.int64 if bits == MAX_BITS and (alpha is not None or not signed) else torch.int32)


def dequantize(codes: Tensor, beta: Tensor, *, bits: int, signed: bool, alpha: Tensor | None = None) -> Tensor:
    """The grid points of integer codes: codes times the step.

    Args:
        codes: Integer codes, as `quantize_to_codes` returns them.
        beta: The end of the range, in a shape that broadcasts against the codes.
        bits: The width.
        signed: Whether the range is [-beta, beta]; otherwise it is [0, beta].
        alpha: The lower end of an asymmetric range [alpha, beta].

    Returns:
        A tensor in the dtype of beta.

    Example::

        >>> import torch
        >>> from bayesbits.functional import dequantize
        >>> dequantize(torch.tensor([-1, 0, 1]), torch.tensor(1.5), bits=2, signed=True)
        tensor([-1.,  0.,  1.])
    """
    check_bits((bits,))
    return codes.to(beta.dtype) * step_size(beta, bits, signed, alpha)


def bias_codes(bias: Tensor, step: Tensor) -> Tensor:
    """A bias in whole numbers of input step times weight step, as an integer layer adds it; rounded in float64."""
    return torch.round(bias.double() / step.double())
