"""Whether arrays are equal, how far numbers are apart, and how much of that rounding in float32 explains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesbits.deploy.verification.result import VerificationError

Array = NDArray[Any]

UNIT_ROUNDOFF = 2.0**-24
"""The relative error of one rounding to float32."""
LAYER_ROUNDOFF = 8 * UNIT_ROUNDOFF
"""An integer layer rounds a sum, its scale twice, and their product; twice as many roundings are allowed."""
ERROR_RATIO = 4.0
"""How many times as large the rounding error of a second computation in float32 may be as that of the first."""
FEW_VALUES = 16
"""So few values may each happen to be rounded only once, although much was computed."""


@dataclass(frozen=True)
class ArrayComparison:
    """Comparisons of two arrays that have to be equal; the error names the constant and both sides."""

    found: str
    """Where the first array is from, such as "in the ONNX file"."""
    expected: str
    """Where the second array is from."""
    hint: str = ""
    """The end of the message."""

    def check_equal(self, owner: str, what: str, found: Array, expected: Array) -> None:
        """Raise unless shapes and values are equal; NaN equals NaN."""
        self.check_shape(owner, what, found, expected)
        self.check_none(owner, what, (found != expected) & ~(np.isnan(found) & np.isnan(expected)), found, expected)

    def check_shape(self, owner: str, what: str, found: Array, expected: Array) -> None:
        """Raise unless the shapes are equal."""
        if found.shape != expected.shape:
            raise VerificationError(
                f"{owner}: {what} has shape {found.shape} {self.found} and {expected.shape} {self.expected}{self.hint}"
            )

    def check_none(self, owner: str, what: str, differing: Array, found: Array, expected: Array) -> None:
        """Raise where this mask of the values that differ has any; the message shows the first of them."""
        if differing.any():
            first = tuple(int(index) for index in np.argwhere(differing)[0])
            raise VerificationError(
                f"{owner}: {what} differs in {int(differing.sum())} of {differing.size} values; the first, at {first}, "
                f"is {found[first]} {self.found} and {expected[first]} {self.expected}{self.hint}"
            )


def count_true(mask: Tensor | Array) -> int:
    """How many elements of a mask are true; numpy counts in a tenth of the time that sums take."""
    return int(np.count_nonzero(mask.numpy() if isinstance(mask, Tensor) else mask))


def tolerance(exact: Tensor, in_float32: Tensor, roundoff: float = LAYER_ROUNDOFF) -> Tensor:
    """How far each value of a second computation in float32 may lie from the exact one.

    It is a roundoff, relative to the value itself and to the largest computed value, plus a multiple of the error that
    a first computation in float32 makes on the same inputs. A value that is off by at most one rounding, such as a
    constant that masks entries, does not count as computed: however large it is, it does not widen the tolerance of
    the others.
    """
    exact = exact.double()
    error = in_float32.double() - exact
    computed = error.abs() > UNIT_ROUNDOFF * exact.abs()
    if exact.numel() < FEW_VALUES and not bool(computed.any()):
        computed = error != 0
    own = torch.nan_to_num(exact.abs(), nan=0.0, posinf=0.0)
    return roundoff * own.clamp(min=largest(exact[computed])) + ERROR_RATIO * largest(error[computed])


def largest(tensor: Tensor) -> float:
    """The largest magnitude of a finite value."""
    return float(torch.nan_to_num(tensor.double().abs(), nan=0.0, posinf=0.0).max()) if tensor.numel() else 0.0


def differences(one: Tensor, other: Tensor) -> Tensor:
    """The absolute differences; 0 where both are NaN or the same infinity, huge where only one is."""
    same = (one == other) | (one.isnan() & other.isnan())
    return torch.where(same, 0.0, torch.nan_to_num((one.double() - other.double()).abs(), nan=torch.inf))


def largest_difference(one: Tensor, other: Tensor) -> float:
    """The largest absolute difference."""
    return float(differences(one, other).max()) if one.numel() else 0.0


def describe_excess(apart: Tensor, allowed: Tensor, exact: Tensor) -> str:
    """The difference that exceeds its tolerance the most, in words."""
    worst = int((apart - allowed).argmax())
    return (
        f"off by {apart.flatten()[worst]:.1e}, where {largest(exact):.3g} is the largest and float arithmetic explains "
        f"{allowed.flatten()[worst]:.1e}"
    )
