"""How far float32 arithmetic may lead away from an exact number, and how far numbers are apart."""

from __future__ import annotations

import torch
from torch import Tensor

UNIT = 2.0**-24
"""One rounding of float32, as a part of the number."""
ROUNDINGS = 8 * UNIT
"""An integer layer rounds a sum, its scale twice, and their product, each to 24 bits; twice that is allowed."""
TIMES_OWN_NOISE = 4.0
"""How many times the largest rounding error of one computation in float32 that of another may be."""

FEW = 16
"""As many numbers may all be rounded only once in the end by chance, although much was computed."""


def allowed(exact: Tensor, in_float32: Tensor, roundings: float = ROUNDINGS) -> Tensor:
    """How far each number of a second computation in float32 may lie from the exact one.

    It is some roundings, of the number itself and of the largest that was computed, and the error that the first
    computation makes in float32 on the very same inputs, which is measured. A number that is off by no more than one
    rounding, such as a constant that masks entries, says nothing about the others, however large it is.
    """
    exact = exact.double()
    error = in_float32.double() - exact
    computed = error.abs() > UNIT * exact.abs()
    if exact.numel() < FEW and not bool(computed.any()):
        computed = error != 0
    own = torch.nan_to_num(exact.abs(), nan=0.0, posinf=0.0)
    return roundings * own.clamp(min=largest(exact[computed])) + TIMES_OWN_NOISE * largest(error[computed])


def largest(tensor: Tensor) -> float:
    """The largest magnitude of a finite number."""
    return float(torch.nan_to_num(tensor.double().abs(), nan=0.0, posinf=0.0).max()) if tensor.numel() else 0.0


def differences(one: Tensor, other: Tensor) -> Tensor:
    """How far numbers are apart; infinitely where a number stands beside none, or another infinity."""
    same = (one == other) | (one.isnan() & other.isnan())
    return torch.where(same, 0.0, torch.nan_to_num((one.double() - other.double()).abs(), nan=torch.inf))


def largest_difference(one: Tensor, other: Tensor) -> float:
    """The largest of them."""
    return float(differences(one, other).max()) if one.numel() else 0.0


def far(apart: Tensor, room: Tensor, exact: Tensor) -> str:
    """In words what is off by more than is allowed: the worst of it."""
    worst = int((apart - room).argmax())
    return (
        f"off by {apart.flatten()[worst]:.1e}, where {largest(exact):.3g} is the largest and float arithmetic explains "
        f"{room.flatten()[worst]:.1e}"
    )
