"""An estimate from several seeds: the mean, and its standard error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import floor, log10, sqrt
from statistics import fmean, stdev
from typing import Any

from bayesbits.recipes.metrics import text_of

_DIGITS = 3  # of relative bit operations


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds."""

    mean: float
    error: float | None
    """The standard error of the mean; None for a single value."""
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> Estimate:
        """The estimate from the values of all seeds."""
        found = tuple(map(float, values))
        return cls(fmean(found), stdev(found) / sqrt(len(found)) if len(found) > 1 else None, found)

    def to_json(self) -> dict[str, Any]:
        """The estimate as plain data."""
        return {"mean": self.mean, "standard_error": self.error, "values": list(self.values)}

    @property
    def ends(self) -> tuple[float, float]:
        """One standard error below and above the mean."""
        return self.mean - (self.error or 0.0), self.mean + (self.error or 0.0)


def estimate_text(estimate: Estimate, unit: str = "") -> str:
    """A mean with its standard error, such as "97.31 ± 0.12%"."""
    if estimate.error is None:
        return text_of(estimate.mean, unit)
    decimals = 2 if unit == "%" else 4
    return f"{estimate.mean:.{decimals}f} ± {estimate.error:.{decimals}f}{unit}"


def cost_text(estimate: Estimate) -> str:
    """Relative bit operations with their standard error, such as "0.613 ± 0.022%"."""
    if estimate.error is None:
        return f"{estimate.mean:.3g}%"
    decimals = max(0, _DIGITS - 1 - floor(log10(estimate.mean))) if estimate.mean > 0 else _DIGITS
    return f"{estimate.mean:.{decimals}f} ± {estimate.error:.{decimals}f}%"
