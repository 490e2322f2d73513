"""What a quantizer sees while the network is calibrated: extremes of every batch, and a sample where a method needs it.

Everything that is seen stays on the device and is read once, at the end.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesbits.compression.range_estimation import RangeOptions, least_error, percentile_of_magnitudes
from bayesbits.compression.sampling import SAMPLE, evenly_spaced, in_rows


@dataclass(frozen=True)
class SeenValues:
    """What a quantizer has seen, on the host."""

    batches: tuple[int, ...]
    """The numbers of the batches that reached it."""
    magnitudes: Tensor
    """The largest of each such batch; NaN and infinities included."""
    percentiles: Tensor
    """Of the magnitudes of each such batch, where the method needs them."""
    signed: bool
    """Whether any value lay below zero."""

    @property
    def largest(self) -> Tensor:
        return self.magnitudes.amax().reshape(1)


class RangeObserver:
    """A forward pre-hook that gathers what one quantizer sees, on the device."""

    def __init__(self, options: RangeOptions) -> None:
        self.options = options
        self.count = 0  # batches that ended
        self.calls: list[Tensor] = []  # in the present batch: smallest value, largest value, percentile
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
        self.calls.append(torch.stack(statistics))
        if self.options.method == "mse":
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
        magnitudes = torch.maximum(low.abs(), high.abs())
        return SeenValues(tuple(self.batches), magnitudes, torch.cat([*percentiles, low[:0]]), bool((low < 0).any()))

    def end(self, seen: SeenValues) -> Tensor:
        """Where the range ends by the method; a vector of one."""
        if self.options.method == "percentile":
            return seen.percentiles.mean().reshape(1)
        if self.options.method == "mse":
            sample = torch.cat(self.sample, dim=1)
            return least_error(sample, seen.largest.to(sample), self.options.reference_bits, seen.signed).cpu()
        if self.options.method == "minmax":
            return seen.largest
        average, *further = seen.magnitudes.unbind()
        for magnitude in further:
            average = self.options.momentum * average + (1 - self.options.momentum) * magnitude
        return average.reshape(1)
