"""Range estimation: where a range ends for given values, by one of four methods.

- `minmax`: where the largest magnitude is the outermost code; nothing is clipped;
- `moving_average`: the same with the exponential moving average of each batch's largest magnitude;
- `percentile`: the same with a percentile of the magnitudes, averaged over batches;
- `mse`: where rounding to a reference width has the smallest mean squared error.

The outermost code of a signed range lies half a step inside of its end, at 127 of 127.5 steps with 8 bits and at 7 of
7.5 with 4. A range that ended at the largest magnitude would make the largest weights of every channel smaller, and
with them, layer after layer, the numbers of a deep network.

An asymmetric range has two ends: the smallest and the largest value, their moving averages, the percentiles of the
values from below and from above, or the two at which the error is smallest.

The last two work on a bounded sample of evenly spaced values, which is the same in every run.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bayesbits.compression.sampling import SAMPLE, evenly_spaced
from bayesbits.functional import reference
from bayesbits.functional.grid import INTEGER_BITS, asymmetric_code_bounds, check_bits, code_bounds, has_grid, step_size
from bayesbits.functional.operation import SMALLEST_RANGE
from bayesbits.nn import Quantizer

METHODS = ("minmax", "moving_average", "percentile", "mse")
"""The methods that `Compressor.calibrate` takes; public as `bayesbits.CALIBRATION_METHODS`."""
FINE_BITS = 8
"""From this width on rounding costs so little that nothing need be clipped for it."""

_PERCENTILE_SAMPLE = 4 * SAMPLE  # 26 values lie beyond a percentile of 99.99
_VALUES_AT_ONCE = 2**17  # that are rounded by one operation: so many fit into a cache
_SUMS_AT_ONCE = 2**20  # of the values between two ties
_VALUES_FOR_SUMS = 32  # for each code; with fewer, rounding every value is quicker
_FRACTIONS = [0.95**power for power in range(100)]  # of the largest magnitude, from all of it down to 0.6%
_COARSE_FRACTIONS = _FRACTIONS[::2]  # of one end of two

# An end of an asymmetric range is at least this part of the other one. Its logarithm is what learns, and an end at
# zero, or at a single value that is nearly zero, would never come back. It lengthens the range by at most this part.
SMALLEST_END = 1e-3


@dataclass(frozen=True)
class RangeOptions:
    """A method and its options, checked."""

    method: str
    """One of METHODS."""
    percentile: float
    """For `percentile`: how much of the magnitudes lies inside the range, in percent."""
    reference_bits: int
    """The width whose outermost code the largest magnitude is; for `mse`, at which the error is smallest."""
    momentum: float = 0.0
    """For `moving_average`: how much of the average each further batch keeps."""
    always_signed: bool = False
    """Whether the range is signed also where no value lies below zero."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        if not 0 < self.percentile <= 100:
            raise ValueError(f"percentile must lie above 0 and be at most 100, got {self.percentile}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, got {self.momentum}")
        check_bits((self.reference_bits,))


def percentile_of_magnitudes(rows: Tensor, percentile: float) -> Tensor:
    """A percentile of |x|, one for each row."""
    return torch.quantile(evenly_spaced(rows, _PERCENTILE_SAMPLE).abs(), percentile / 100, dim=1)


def percentiles_of_values(rows: Tensor, percentile: float) -> Tensor:
    """The values of the first row below which, and above which, lies as much as is beyond the percentile."""
    beyond = 1 - percentile / 100
    return torch.quantile(evenly_spaced(rows, _PERCENTILE_SAMPLE)[0], rows.new_tensor([beyond, 1 - beyond]))


def round_to_bits(rows: Tensor, beta: Tensor, bits: int, signed: bool, alpha: Tensor | None = None) -> Tensor:
    """Each row rounded to the grid of its range."""
    lower = None if alpha is None else alpha.reshape(-1, 1)
    return reference.forward(
        rows, beta.reshape(-1, 1), torch.ones(1, device=rows.device), signed, (bits,), alpha=lower
    )  # fmt: skip


def end_of_range(largest: Tensor, bits: int, signed: bool) -> Tensor:
    """Where a range ends whose outermost code at a width is the largest magnitude."""
    if not signed or not has_grid(bits, torch.float32):
        return largest
    return largest / (step_size(torch.ones_like(largest), bits, signed) * code_bounds(bits, signed)[1])


def least_error(rows: Tensor, largest: Tensor, bits: int, signed: bool) -> Tensor:
    """For each row the end of its range at which rounding has the least squared error."""
    fractions = torch.tensor(_FRACTIONS, dtype=largest.dtype, device=largest.device)
    whole = end_of_range(largest, bits, signed)[:, None]
    candidates = torch.cat([whole, largest[:, None] * fractions], dim=1).clamp_min(SMALLEST_RANGE)
    if not has_grid(bits, rows.dtype):  # values are clipped and not rounded: the widest range is the best
        return candidates[:, 0]
    values = rows.abs() if signed else rows  # signed codes are symmetric
    codes = code_bounds(bits, signed)[1] + 1
    by_sums = bits <= INTEGER_BITS and values.shape[1] > _VALUES_FOR_SUMS * codes
    at_once = max(1, _SUMS_AT_ONCE // (codes * candidates.shape[1]) if by_sums else _VALUES_AT_ONCE // values.shape[1])
    errors = [
        (_errors_from_sums if by_sums else _errors_by_rounding)(*some, bits, signed)
        for some in zip(torch.split(values, at_once), torch.split(candidates, at_once), strict=True)
    ]
    return candidates.gather(1, torch.cat(errors).argmin(dim=1, keepdim=True)).squeeze(1)


def _errors_by_rounding(values: Tensor, candidates: Tensor, bits: int, signed: bool) -> Tensor:
    """The squared error of each row (axis 0) at each of its candidates (axis 1): every value is rounded."""
    errors = []
    steps = step_size(candidates, bits, signed)[..., None].to(values)
    for some in torch.split(steps, max(1, _VALUES_AT_ONCE // values.numel()), dim=1):
        codes = (values[:, None, :] / some).round_().clamp_(0, code_bounds(bits, signed)[1])
        errors.append(codes.mul_(some).sub_(values[:, None, :]).square_().sum(dim=2))
    return torch.cat(errors, dim=1)


def _errors_from_sums(values: Tensor, candidates: Tensor, bits: int, signed: bool) -> Tensor:
    """The same less the sum of all squares, without rounding every value: between two ties all have the same code.

    For n values x that are rounded to q, the error is sum x^2 - 2 q sum x + n q^2, and the first sum does not depend on
    the candidate. The sums come from those over all smaller values, which are computed once, in float64.
    """
    ordered = _in_order(values)
    wide = torch.nn.functional.pad(ordered.double(), (1, 0))
    sums = wide.cumsum(dim=1)
    codes = torch.arange(code_bounds(bits, signed)[1] + 1, dtype=torch.float64, device=values.device)
    steps = step_size(candidates.double(), bits, signed)[..., None]
    ties = ((codes[1:] - 0.5) * steps).flatten(1)
    ends = _count_below(ordered.double(), ties).reshape(*candidates.shape, -1)
    ends = torch.nn.functional.pad(ends, (1, 1))
    ends[..., -1] = values.shape[1]
    counts, points = ends.diff(), codes * steps
    parts = sums.gather(1, ends.flatten(1)).reshape(ends.shape).diff()
    return (points * (counts * points - 2 * parts)).sum(dim=2)


def _in_order(rows: Tensor) -> Tensor:
    """Each row in increasing order; on the CPU by numpy, which looks for no indices and takes a quarter of the time."""
    if rows.device.type != "cpu" or rows.dtype not in (torch.float32, torch.float64):
        return rows.sort(dim=1).values
    return torch.from_numpy(np.sort(rows.detach().numpy(), axis=1))


def _count_below(ordered: Tensor, ties: Tensor) -> Tensor:
    """How many values of each row, which is in increasing order, lie below each tie of that row.

    On the CPU by numpy, which looks for a tie above the one in front of it only behind that one, and takes half of the
    time.
    """
    if ordered.device.type != "cpu":
        return torch.searchsorted(ordered, ties)
    rows = zip(ordered.detach().numpy(), ties.detach().numpy(), strict=True)
    return torch.from_numpy(np.stack([np.searchsorted(values, wanted) for values, wanted in rows]))


def least_error_of_two_ends(rows: Tensor, alpha: Tensor, beta: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Parts of both ends at which rounding one row has the least squared error: found together, then one by one."""
    alpha, beta = keep_ends_apart(alpha, beta)
    by_sums = bits <= INTEGER_BITS and rows.shape[1] > _VALUES_FOR_SUMS * 2**bits
    values = _in_order(rows) if by_sums else rows
    least, best = torch.inf, (alpha, beta)
    for lower, upper in ((True, True), (True, False), (False, True), (True, False)):
        fractions = beta.new_tensor(_FRACTIONS if lower and upper else _COARSE_FRACTIONS)
        ends = keep_ends_apart(
            alpha * fractions if lower else best[0].expand_as(fractions),
            beta * fractions if upper else best[1].expand_as(fractions),
        )
        errors = (_two_ended_errors_from_sums if by_sums else _two_ended_errors)(values, *ends, bits)
        index = errors.argmin(dim=0, keepdim=True)
        if errors[index].item() < least:
            least, best = errors[index].item(), (ends[0][index], ends[1][index])
    return best


def _two_ended_errors(values: Tensor, alpha: Tensor, beta: Tensor, bits: int) -> Tensor:
    """The squared error of one row at each pair of ends: every value is rounded."""
    errors = []
    size = max(1, _VALUES_AT_ONCE // values.numel())
    for lows, highs in zip(torch.split(alpha, size), torch.split(beta, size), strict=True):
        repeated = values.expand(len(lows), -1)
        errors.append((round_to_bits(repeated, highs, bits, True, lows) - repeated).square().sum(dim=1))
    return torch.cat(errors)


def _two_ended_errors_from_sums(ordered: Tensor, alpha: Tensor, beta: Tensor, bits: int) -> Tensor:
    """The same less the sum of all squares, for values in increasing order; see `_errors_from_sums`."""
    low, high = (bound.double()[:, None] for bound in asymmetric_code_bounds(alpha, beta, bits))
    steps = step_size(beta, bits, True, alpha).double()[:, None]
    codes = low + torch.arange(2**bits, dtype=torch.float64, device=ordered.device)
    ties = torch.where(codes[:, 1:] > high, torch.inf, (codes[:, 1:] - 0.5) * steps)  # no value lies behind the last
    ends = _count_below(ordered.double(), ties.reshape(1, -1)).reshape(ties.shape)
    ends = torch.nn.functional.pad(ends, (1, 1))
    ends[:, -1] = ordered.shape[1]
    sums = torch.nn.functional.pad(ordered[0].double(), (1, 0)).cumsum(dim=0)
    counts, points, parts = ends.diff(), codes * steps, sums[ends].diff()
    return (points * (counts * points - 2 * parts)).sum(dim=1)


def keep_ends_apart(alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Both ends with zero between them, and each at least a small part of the other; see SMALLEST_END."""
    largest = torch.maximum(-alpha, beta).clamp_min(SMALLEST_RANGE / SMALLEST_END)
    return torch.minimum(alpha, -SMALLEST_END * largest), torch.maximum(beta, SMALLEST_END * largest)


def set_asymmetric_range(
    quantizer: Quantizer, ends: tuple[Tensor, Tensor], extremes: tuple[Tensor, Tensor]
) -> str | None:
    """Give the quantizer a range of two ends that is usable in any case; returns what is odd about it, if anything is.

    `ends` are those that a method found, `extremes` the smallest and the largest value; all are vectors of one.
    """
    largest = torch.maximum(-extremes[0], extremes[1])
    if bool(largest < SMALLEST_RANGE):
        return set_range(quantizer, largest, largest, signed=True)
    problem = None
    if bool(torch.maximum(-ends[0], ends[1]) < SMALLEST_RANGE):
        problem = "its range would end at zero, as nearly all values are zero; the extreme values are taken instead"
        ends = extremes
    alpha, beta = keep_ends_apart(*(end.double() for end in ends))
    quantizer.set_range(_widened(beta).reshape(()), alpha=-_widened(-alpha).reshape(()))
    return problem


def _widened(ends: Tensor) -> Tensor:
    """Quantizers keep the logarithm, in float32. Its rounding must not leave the largest value outside of the range."""
    return ends * (1 + 1.3e-7 + 6e-8 * ends.log().abs())


def set_range(quantizer: Quantizer, ends: Tensor, largest: Tensor, *, signed: bool) -> str | None:
    """Give the quantizer a range that is usable in any case; returns what is odd about it, if anything is.

    `ends` and `largest` have one value for each row. Rows of zeros take the range of the whole tensor.
    """
    problem = None
    dead = largest < SMALLEST_RANGE
    if bool(dead.all()):
        problem = "all of its values are zero; its range is set to 1"
    elif ends.max() < SMALLEST_RANGE:
        problem = "its range would end at zero, as nearly all values are zero; the largest magnitude is taken instead"
    largest = torch.where(dead, 1.0 if dead.all() else largest.max(), largest)
    ends = _widened(torch.where(dead | (ends < SMALLEST_RANGE), largest, ends).double())
    shape = quantizer.range_shape
    quantizer.set_range(ends.expand(shape.numel()).reshape(shape), signed=signed)
    return problem
