"""What a quantizer sees while the network is calibrated: extremes of every batch, and a sample where a method needs it.

Everything that is seen stays on the device and is read once, at the end.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesbits.compression.range_estimation import (
    RangeOptions,
    end_of_range,
    least_error,
    least_error_of_two_ends,
    percentile_of_magnitudes,
    percentiles_of_values,
)
from bayesbits.compression.sampling import SAMPLE, evenly_spaced, in_rows


@dataclass(frozen=True)
class SeenValues:
    """What a quantizer has seen, on the host."""

    batches: tuple[int, ...]
    """The numbers of the batches that reached it."""
    lows: Tensor
    """The smallest value of each such batch; NaN and infinities included."""
    highs: Tensor
    """The largest value of each such batch."""
    percentiles: tuple[Tensor, ...]
    """Of each such batch, where the method needs them: of the magnitudes, and of the values from below and above."""
    always_signed: bool = False
    """Whether the range is signed also where no value lay below zero."""

    @property
    def magnitudes(self) -> Tensor:
        """The largest magnitude of each batch; NaN and infinities included."""
        return torch.maximum(self.lows.abs(), self.highs.abs())

    @property
    def largest(self) -> Tensor:
        return self.magnitudes.amax().reshape(1)

    @property
    def extremes(self) -> tuple[Tensor, Tensor]:
        """The smallest and the largest value."""
        return self.lows.amin().reshape(1), self.highs.amax().reshape(1)

    @property
    def signed(self) -> bool:
        """Whether the range has codes below zero: any value lay there, or all ranges are signed."""
        return self.always_signed or bool((self.lows < 0).any())


class RangeObserver:
    """A forward pre-hook that gathers what one quantizer sees, on the device."""

    def __init__(self, options: RangeOptions, *, sampling: bool = False) -> None:
        """With `sampling` there is a sample of the values, whatever the method."""
        self.options = options
        self.sampling = sampling or options.method == "mse"
        self.count = 0  # batches that ended
        self.calls: list[Tensor] = []  # in the present batch: smallest value, largest value, percentiles
        self.batches: dict[int, Tensor] = {}  # the same for each batch with values
        self.sample: list[Tensor] = []
        self.thinning = 1  # of the evenly spaced values, the sample has one in so many

    def __call__(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].numel() == 0:
            return
        row = in_rows(inputs[0], 1)
        statistics = [*torch.aminmax(row)]
        if self.options.method == "percentile":
            statistics.append(percentile_of_magnitudes(row, self.options.percentile)[0])
            statistics += percentiles_of_values(row, self.options.percentile)
        self.calls.append(torch.stack(statistics))
        if self.sampling:
            # A copy, as the network may write into the tensor later.
            self.sample.append(evenly_spaced(row, SAMPLE)[:, :: self.thinning].clone())
            if sum(part.numel() for part in self.sample) > 2 * SAMPLE:
                self.sample = [torch.cat(self.sample, dim=1)[:, ::2].clone()]
                self.thinning *= 2

    def end_batch(self) -> None:
        if self.calls:
            low, high, *percentiles = torch.stack(self.calls).unbind(dim=1)
            self.batches[self.count] = torch.stack([low.amin(), high.amax(), *(part.mean() for part in percentiles)])
        self.calls = []
        self.count += 1

    def read(self) -> SeenValues:
        """The one place that waits for the device."""
        low, high, *percentiles = torch.stack(list(self.batches.values())).double().cpu().unbind(dim=1)
        return SeenValues(tuple(self.batches), low, high, tuple(percentiles), self.options.always_signed)

    def ends(self, seen: SeenValues) -> tuple[Tensor, Tensor]:
        """Where an asymmetric range begins and ends by the method; two vectors of one."""
        if self.options.method == "percentile":
            _, below, above = seen.percentiles
            return below.mean().reshape(1), above.mean().reshape(1)
        if self.options.method == "mse":
            sample = torch.cat(self.sample, dim=1).float()
            alpha, beta = (end.to(sample) for end in seen.extremes)
            alpha, beta = least_error_of_two_ends(sample, alpha, beta, self.options.reference_bits)
            return alpha.cpu(), beta.cpu()
        if self.options.method == "minmax":
            return seen.extremes
        return self._average(seen.lows), self._average(seen.highs)

    def end(self, seen: SeenValues) -> Tensor:
        """Where the range ends by the method; a vector of one."""
        bits = self.options.reference_bits
        if self.options.method == "mse":
            sample = torch.cat(self.sample, dim=1)
            return least_error(sample, seen.largest.to(sample), bits, seen.signed).cpu()
        if self.options.method == "percentile":
            largest = seen.percentiles[0].mean().reshape(1)
        else:
            largest = seen.largest if self.options.method == "minmax" else self._average(seen.magnitudes)
        return end_of_range(largest, bits, seen.signed)

    def _average(self, values: Tensor) -> Tensor:
        """The exponential moving average over the batches."""
        average, *further = values.unbind()
        for value in further:
            average = self.options.momentum * average + (1 - self.options.momentum) * value
        return average.reshape(1)
