"""All outputs of a network, by name: errors, and along the axis of classes which entry is the largest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.verification.deployed import class_axes
from bayesbits.deploy.verification.record import Decisions, Output, VerificationError
from bayesbits.deploy.verification.rounding import allowed, differences, far, largest, largest_difference


def output_names(small: DeployedNetwork) -> list[str]:
    """What the outputs are called."""
    return list(small.integer.structure.outputs)


def decide(one: Tensor, other: Tensor, axis: int | None, before: Decisions) -> Decisions:
    """Count in how many places the largest entry along an axis is another one."""
    if axis is None or not one.is_floating_point() or one.dim() < max(2, -axis) or one.shape[axis] < 2:
        return before
    flipped = one.argmax(axis) != other.argmax(axis)
    return Decisions(one.shape[axis], before.compared + flipped.numel(), before.flipped + int(flipped.sum()))


class Outputs:
    """Counts over batches."""

    def __init__(self, small: DeployedNetwork) -> None:
        self.names, self._axes = output_names(small), class_axes(small)
        self._found: dict[str, dict[str, Any]] = {}

    def add(
        self,
        alone: Sequence[Tensor],
        exact: Sequence[Tensor],
        noisy: Sequence[Tensor],
        deployed: Sequence[Tensor],
    ) -> None:
        """Count a batch; raises where an output is off by more than is allowed of it.

        The simulation computed it alone and, fed the deployed network's codes, in float64 and in float32 (`noisy`).
        """
        if not len(alone) == len(exact) == len(deployed) == len(self.names):
            raise VerificationError(
                f"output: the simulation returns {len(exact)} tensors, and the deployed network {len(deployed)}"
            )
        wrong = []
        for name, axis, mine, right, rounded, theirs in zip(
            self.names, self._axes, alone, exact, noisy, deployed, strict=True
        ):
            if not mine.shape == right.shape == theirs.shape:
                raise VerificationError(
                    f"{name}: shape {tuple(mine.shape)} when trained, {tuple(theirs.shape)} deployed"
                )
            if theirs.is_floating_point():
                apart, room = differences(theirs, right), allowed(right, rounded)
                error, tolerance = largest(apart), largest(room)
                if not bool((apart <= room).all()):
                    wrong.append(f"{name}: {far(apart, room, right)}")
            else:
                error, tolerance, differing = 0.0, 0.0, (theirs != right) & (theirs != mine)
                if bool(differing.any()):
                    wrong.append(f"{name}: {int(differing.sum())} of {differing.numel()} values differ")
            self._count(name, axis, mine, right, theirs, error, tolerance)
        if wrong:
            raise VerificationError(f"{wrong[0]}, the simulation fed the deployed network's own codes")

    def _count(
        self,
        name: str,
        axis: int | None,
        alone: Tensor,
        exact: Tensor,
        deployed: Tensor,
        error: float,
        tolerance: float,
    ) -> None:
        empty = {"values": 0, "error": 0.0, "tolerance": 0.0, "apart": 0.0, "largest": 0.0, "decisions": Decisions()}
        found = self._found.setdefault(name, empty)
        found["values"] += deployed.numel()
        apart = largest_difference(alone, deployed)
        news = {"error": error, "tolerance": tolerance, "apart": apart, "largest": largest(exact)}
        found |= {key: max(found[key], value) for key, value in news.items()}
        found["decisions"] = decide(alone, deployed, axis, found["decisions"])

    def found(self) -> tuple[Output, ...]:
        """What was counted so far."""
        return tuple(
            Output(
                name,
                found["values"],
                found["error"] / (found["largest"] or 1.0),
                found["tolerance"] / (found["largest"] or 1.0),
                found["apart"] / (found["largest"] or 1.0),
                found["decisions"],
            )
            for name, found in self._found.items()
        )
