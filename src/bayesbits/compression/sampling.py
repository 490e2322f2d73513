"""A bounded sample of a tensor's values, for estimates that need not read all of them; the same in every run."""

import math

from torch import Tensor

from bayesbits.functional.grid import arithmetic_dtype
from bayesbits.nn.quantizer import broadcasting

SAMPLE = 2**16  # values of one range from which errors are computed


def in_rows(x: Tensor, count: int) -> Tensor:
    """x without its graph, as a matrix with one row for each of `count` ranges, in the arithmetic's precision."""
    return x.detach().reshape(count, -1).to(arithmetic_dtype(x.dtype))


def sampled_rows(x: Tensor, count: int) -> Tensor:
    """Evenly spaced values of x, in one row for each of `count` ranges; about `SAMPLE` in all."""
    return evenly_spaced(in_rows(x, count), max(1, SAMPLE // count))


def unstretched(x: Tensor, stretch: Tensor | None) -> Tensor:
    """A weight as it would be rounded on a grid that is not stretched (see `Quantizer.forward`)."""
    return x if stretch is None else x / broadcasting(stretch, x)


def evenly_spaced(rows: Tensor, limit: int) -> Tensor:
    """Evenly spaced columns, with at most `limit` values in each row.

    Every row has a range of its own, and a range that is fitted to a few of the row's values clips the others. So the
    limit counts the values of a row, and not those of the whole matrix, which may have thousands of short rows.

    The spacing has no factor in common with the number of columns: otherwise it could fall in step with the rows of an
    image or with channels, and some of them would never be seen.
    """
    columns = rows.shape[1]
    spacing = max(1, math.ceil(columns / limit))
    while math.gcd(spacing, columns) > 1:
        spacing += 1
    return rows[:, ::spacing]
