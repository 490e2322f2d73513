"""The configuration of post-training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor

from bayesbits.compression.range_estimation import METHODS
from bayesbits.utils.checks import check_choice, check_integer, check_positive, is_number

LEARN = ("gates", "gates+ranges")
LOSSES = ("labels", "output", "layers", "cosine", "mse")
"""The losses that have a name."""


@dataclass(frozen=True)
class PosttrainConfig:
    """How gates, and ranges where asked for, are learned on a small set.

    Args:
        mus: The weights of the penalty, increasing: each gives one point of the front. None: eight, chosen for the
            network, the penalty and the loss by a short probe.
        loss: The loss beside the penalty: "labels" (cross-entropy, or the `loss_fn` that is given); or, without labels,
            "output" (the KL divergence from the float network's probabilities), "cosine" (one minus the cosine to the
            float network's output), "mse" (the squared error of the output, relative to its squares), "layers" (the
            same of the layers' outputs), or a function of your own, `loss(output, float_output)`.
        steps: The number of steps, of one batch each, for a point; every pass over the batches has a new order.
        gate_lr: The learning rate of the gates' logits. A step moves a logit by about this much, a gate starts at 6 and
            closes below -0.9: fewer steps need a larger learning rate.
        range_lr: The learning rate of the logarithms of the ranges, where they learn.
        calibration: The method by which ranges are calibrated from the batches first, where they are not known; see
            `Compressor.calibrate`.
        seed: The seed of the gates' noise and of the order of the batches.

    Raises:
        ValueError: A value is not allowed; the message names the field.

    Example::

        >>> import bayesbits as bb
        >>> bb.PosttrainConfig(mus=(0.001, 0.01), loss="output").mus
        (0.001, 0.01)
    """

    mus: tuple[float, ...] | None = None
    """The weights of the penalty, increasing: each gives one point of the front. None: eight, chosen for the network,
    the penalty and the loss by a short probe."""
    loss: str | Callable[[Any, Any], Tensor] = "labels"
    """The loss beside the penalty: "labels" (cross-entropy, or the `loss_fn` that is given); or, without labels,
    "output" (the KL divergence from the float network's probabilities), "cosine" (one minus the cosine to the float
    network's output), "mse" (the squared error of the output, relative to its squares), "layers" (the same of the
    layers' outputs), or a function of your own, `loss(output, float_output)`."""
    steps: int = 64
    """The number of steps, of one batch each, for a point; every pass over the batches has a new order."""
    gate_lr: float = 0.2
    """The learning rate of the gates' logits. A step moves a logit by about this much, a gate starts at 6 and closes
    below -0.9: fewer steps need a larger learning rate."""
    range_lr: float = 0.01
    """The learning rate of the logarithms of the ranges, where they learn."""
    calibration: str = "mse"
    """The method by which ranges are calibrated from the batches first, where they are not known; see
    `Compressor.calibrate`."""
    seed: int = 0
    """The seed of the gates' noise and of the order of the batches."""

    def __post_init__(self) -> None:
        if self.mus is not None:
            object.__setattr__(self, "mus", _check_mus(self.mus))
        if not callable(self.loss):
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
            f"PosttrainConfig.mus is {mus}; no weight is negative, and they increase: each point starts where the "
            "previous one ended"
        )
    return tuple(map(float, mus))
