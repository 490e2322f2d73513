"""What a user chooses about post-training; checked when it is made, before any work."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bayesbits.compression.range_estimation import METHODS
from bayesbits.utils.checks import check_choice, check_integer, check_positive, is_number

LEARN = ("gates", "gates+ranges")
LOSSES = ("labels", "output", "layers")

# The paper's for its own gates. Those without noise close at a smaller weight, and in deep networks, where a tensor by
# itself matters less, at a still smaller one: these reach from above the cost of 8/8 to where accuracy is lost, in
# ResNet-20 as in ResNet-56.
_WITHOUT_NOISE = (0.000003, 0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01)
MUS = {
    "hard_concrete": (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05),
    "hard_sigmoid": _WITHOUT_NOISE,
    "sigmoid": _WITHOUT_NOISE,
}


@dataclass(frozen=True)
class PosttrainConfig:
    """How gates, and perhaps ranges, are learned on a small set."""

    mus: tuple[float, ...] | None = None
    """The weights of the penalty, increasing: one point of the front for each. None: eight that suit the spec's kind of
    gates with the penalty "paper"."""
    loss: str = "labels"
    """What is asked for beside the price: "labels" (cross-entropy, or the `loss_fn` that is given); without labels,
    "output" (the divergence from the float network's probabilities) or "layers" (the float network's layers' outputs).
    """
    steps: int = 64
    """How many steps, of a batch each, lead to a point; the batches are gone through in a new order each time."""
    gate_lr: float = 0.2
    """The learning rate of the gates' logits. A step moves a logit by about as much, and a gate starts at 6 and closes
    below -0.9: fewer steps want a higher rate."""
    range_lr: float = 0.01
    """The learning rate of the logarithms of the ranges, where they learn."""
    calibration: str = "mse"
    """How ranges are taken from the batches first; a compressor that is calibrated already keeps its ranges."""
    seed: int = 0
    """The seed of the gates' noise and of the order of the batches."""

    def __post_init__(self) -> None:
        if self.mus is not None:
            object.__setattr__(self, "mus", _check_mus(self.mus))
        check_choice(self, "loss", LOSSES)
        check_choice(self, "calibration", METHODS)
        check_integer(self, "steps", 1)
        check_integer(self, "seed", 0)
        check_positive(self, "gate_lr")
        check_positive(self, "range_lr")


def _check_mus(mus: Any) -> tuple[float, ...]:
    if not isinstance(mus, tuple | list) or not mus or not all(map(is_number, mus)):
        raise ValueError(f"PosttrainConfig.mus is {mus!r}; it is a tuple of numbers such as (0.001, 0.01)")
    if mus[0] < 0 or any(low >= high for low, high in pairwise(mus)):
        raise ValueError(
            f"PosttrainConfig.mus is {mus}; no weight is negative, and they increase: each point goes on from the one "
            "before it"
        )
    return tuple(map(float, mus))
