"""The signal-to-noise ratio of outputs that were rounded, from samples of them, in dB."""

import math
from typing import Any

import torch
from torch import Tensor

from bayesbits.compression.sampling import evenly_spaced, in_rows
from bayesbits.utils.batches import batched_tensors

_VALUES = 2**15  # of an output from which its error is computed


class SignalToNoise:
    """Sums of the squares of a signal and of its noise, over all the outputs that were compared."""

    def __init__(self) -> None:
        self.signal = self.noise = 0.0

    def compare(self, exact: Tensor, rounded: Tensor) -> None:
        """Add an output; one whose shape depends on the values, and differs, is left out."""
        if exact.shape == rounded.shape:
            self.signal += exact.square().sum().item()
            self.noise += (rounded - exact).square().sum().item()

    @property
    def decibel(self) -> float | None:
        """The ratio; None where there is no noise, or nothing to compare it with."""
        return decibel(self.signal, self.noise)


def decibel(signal: float, noise: float) -> float | None:
    """The ratio of two sums of squares in dB; None where there is no noise, or nothing to compare it with."""
    if not (signal > 0 and noise > 0 and math.isfinite(signal) and math.isfinite(noise)):
        return None
    return round(10 * math.log10(signal / noise), 3)


def sample(x: Tensor) -> Tensor:
    """Some of the values of an output, as a row; the same ones for every output of the same shape."""
    return evenly_spaced(in_rows(x, 1), _VALUES)


def sample_of(output: Any) -> Tensor:
    """A sample of the first tensor that a network returned; empty where there is none."""
    found = [x for x in batched_tensors(output) if x.is_floating_point()]
    return sample(found[0]) if found and found[0].numel() else torch.zeros(1, 0)
