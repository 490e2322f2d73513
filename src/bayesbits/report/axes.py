"""Axes of figures: where a value lies, and which values are written beside the axis."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log10


@dataclass(frozen=True)
class Axis:
    """A line from `start` to `end`, in pixels, that values from `low` to `high` lie on."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Where a value lies, in pixels."""
        low, high, at = self.low, self.high, value
        if self.logarithmic:
            low, high, at = log10(low), log10(high), log10(value)
        return self.start + (self.end - self.start) * (at - low) / (high - low)

    def ticks(self) -> list[float]:
        """Round values: whole powers of ten, or about five in equal steps."""
        if self.logarithmic:
            return [10.0**power for power in range(ceil(log10(self.low) - 1e-9), floor(log10(self.high) + 1e-9) + 1)]
        step = _round_step((self.high - self.low) / 5)
        return [step * number for number in range(ceil(self.low / step), floor(self.high / step + 1e-9) + 1)]


def linear_axis(high: float, start: float, end: float) -> Axis:
    """From zero to at least this value."""
    step = _round_step((high or 1.0) / 5)
    return Axis(0.0, step * ceil((high or 1.0) / step - 1e-9), start, end)


def log_axis(low: float, high: float, start: float, end: float) -> Axis:
    """From the power of ten below the least value to the one above the greatest."""
    first = floor(log10(low) + 1e-9)
    return Axis(10.0**first, 10.0 ** max(first + 1, ceil(log10(high) - 1e-9)), start, end, logarithmic=True)


def _round_step(step: float) -> float:
    """The next of 1, 2, 5, 10, ... in the scale of the step."""
    unit: float = 10.0 ** floor(log10(step))
    return next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= step * (1 - 1e-9))
