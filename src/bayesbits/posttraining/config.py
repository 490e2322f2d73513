"""What a user chooses about post-training; checked when it is made, before any work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bayesbits.calibration import METHODS

LEARN = ("gates", "gates+ranges")
LOSSES = ("labels", "output", "layers")


@dataclass(frozen=True)
class PosttrainConfig:
    """How gates, and perhaps ranges, are learned on a small set."""

    mus: tuple[float, ...] = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05)
    """The weights of the penalty, increasing: one point of the front for each. These are the paper's."""
    loss: str = "labels"
    """What is asked for beside the price: "labels" (cross-entropy, or the `loss_fn` that is given); without labels,
    "output" (the divergence from the float network's probabilities) or "layers" (the float network's layers' outputs).
    """
    steps: int = 64
    """How many steps, of a batch each, lead to a point; the batches are gone through in a new order each time."""
    gate_rate: float = 0.2
    """The learning rate of the gates' logits. A step moves a logit by about as much, and a gate starts at 6 and closes
    below -0.9: fewer steps want a higher rate."""
    range_rate: float = 0.01
    """The learning rate of the logarithms of the ranges, where they learn."""
    calibration: str = "mse"
    """How ranges are taken from the batches first; a compressor that is calibrated already keeps its ranges."""
    seed: int = 0
    """The seed of the gates' noise and of the order of the batches."""

    def __post_init__(self) -> None:
        if not isinstance(self.mus, tuple | list) or not self.mus or not all(map(_is_number, self.mus)):
            raise ValueError(f"PosttrainConfig.mus is {self.mus!r}; it is a tuple of numbers such as (0.001, 0.01)")
        object.__setattr__(self, "mus", tuple(map(float, self.mus)))
        if self.mus[0] < 0 or any(low >= high for low, high in pairwise(self.mus)):
            raise ValueError(
                f"PosttrainConfig.mus is {self.mus}; no weight is negative, and they increase: each point goes on from "
                "the one before it"
            )
        for name, allowed in (("loss", LOSSES), ("calibration", METHODS)):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"PosttrainConfig.{name} is {getattr(self, name)!r}; it is one of {', '.join(allowed)}"
                )
        for name, least in (("steps", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"PosttrainConfig.{name} is {value!r}; it is an integer of at least {least}")
        for name in ("gate_rate", "range_rate"):
            value = getattr(self, name)
            if not _is_number(value) or value <= 0:
                raise ValueError(f"PosttrainConfig.{name} is {value!r}; it is a positive number")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
