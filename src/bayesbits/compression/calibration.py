"""Calibration: every quantizer gets its range and sign from data.

The float network runs over a few batches while every quantizer is switched off, and each one looks at the tensors that
it will quantize. What is seen stays on the device and is read once, at the end. Until all of it is known to be usable,
nothing is changed.
"""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.compression.observation import (
    SAMPLE,
    evenly_spaced,
    in_rows,
    restored,
    run_on,
    taking_first_statistics,
    watching,
)
from bayesbits.compression.range_estimation import Options, least_error, percentile_of_magnitudes, set_range
from bayesbits.functional.operation import LARGEST_RANGE
from bayesbits.nn import GatedQuantizer


def calibrate_activations(
    model: nn.Module,
    quantizers: Mapping[str, GatedQuantizer],
    batches: Iterable[Any],
    *,
    method: str = "minmax",
    percentile: float = 99.99,
    reference_bits: int = 8,
    momentum: float = 0.9,
) -> None:
    """Set range and sign of the activation quantizers inside of `model` from what the float network computes.

    `quantizers` maps names of tensors to quantizers. A batch is anything that `run_on` takes, on the model's device. A
    range is signed where a value below zero was seen. Whether a quantizer learns, is fixed or off stays as it was.
    Batch norms that have never run take their statistics from these batches too: those they start with would mislead.
    """
    options = Options(method, percentile, reference_bits, momentum)
    observers = {name: _Observer(_at_own_width(options, quantizer)) for name, quantizer in quantizers.items()}
    count = 0
    with (
        restored(model),
        taking_first_statistics(model) as fresh,
        watching(quantizers, observers),
        torch.no_grad(),
    ):
        for module in model.modules():
            if isinstance(module, GatedQuantizer):
                module.turn_off()
        for batch in batches:
            run_on(model, batch)
            count += 1
            for observer in observers.values():
                observer.end_batch()
        statistics = [(buffer, buffer.clone()) for norm in fresh for buffer in norm.buffers()]
    if count == 0:
        raise ValueError("calibration needs at least one batch, and there was none")
    seen = {name: observer.read() for name, observer in observers.items() if observer.batches}
    _check_values(seen)
    with torch.no_grad():
        for buffer, value in statistics:
            buffer.copy_(value)
    for name, observer in observers.items():
        problem: str | None = "no values reached its quantizer (an unused layer?); its range is left as it was"
        if name in seen:
            problem = set_range(
                quantizers[name], observer.end(seen[name]), seen[name].largest, signed=seen[name].signed
            )
        if problem is not None:
            warnings.warn(f"{name}: {problem}", stacklevel=2)


def calibrate_weight(
    quantizer: GatedQuantizer,
    weight: Tensor,
    name: str,
    *,
    method: str = "minmax",
    reference_bits: int = 8,
    percentile: float = 99.99,
) -> None:
    """Set the range of a weight quantizer, or its ranges where it has one for each index of axis 0; always signed.

    `moving_average` is `minmax` here, as there is only one weight. A channel of zeros gets the range of the tensor.
    """
    options = _at_own_width(Options(method, percentile, reference_bits), quantizer)
    count = quantizer.log_beta.numel()
    if weight.numel() == 0 or (count > 1 and weight.shape[0] != count):
        raise ValueError(f"{name}: a weight of shape {tuple(weight.shape)} does not fit a quantizer of {count} ranges")
    rows = in_rows(weight, count)
    largest = rows.abs().amax(dim=1)
    if not bool((largest <= LARGEST_RANGE).all()):
        raise ValueError(f"{name}: some of its values are NaN, infinite or larger than {LARGEST_RANGE}")
    ends = largest
    if method == "percentile":
        ends = percentile_of_magnitudes(rows, percentile)
    elif method == "mse":
        ends = least_error(evenly_spaced(rows, SAMPLE), largest, options.reference_bits, signed=True)
    problem = set_range(quantizer, ends.cpu(), largest.cpu(), signed=True)
    if problem is not None:
        warnings.warn(f"{name}: {problem}", stacklevel=2)


def _at_own_width(options: Options, quantizer: GatedQuantizer) -> Options:
    """The options for one quantizer: where its width is final, or the only one, its range is for that one."""
    width = quantizer.bits[0] if len(quantizer.bits) == 1 else quantizer.fixed_bits
    return options if not width else replace(options, reference_bits=width)


@dataclass(frozen=True)
class _Seen:
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


class _Observer:
    """A forward pre-hook that gathers what one quantizer sees, on the device."""

    def __init__(self, options: Options) -> None:
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

    def read(self) -> _Seen:
        """The one place that waits for the device."""
        low, high, *percentiles = torch.stack(list(self.batches.values())).double().cpu().unbind(dim=1)
        magnitudes = torch.maximum(low.abs(), high.abs())
        return _Seen(tuple(self.batches), magnitudes, torch.cat([*percentiles, low[:0]]), bool((low < 0).any()))

    def end(self, seen: _Seen) -> Tensor:
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


def _check_values(seen: Mapping[str, _Seen]) -> None:
    """Raise where values cannot be quantized, with the first batch of them and the first tensor in it."""
    wrong = [
        (batch, order, name)
        for order, (name, one) in enumerate(seen.items())
        for batch, usable in zip(one.batches, (one.magnitudes <= LARGEST_RANGE).tolist(), strict=True)
        if not usable
    ]
    if wrong:
        batch, _, name = min(wrong)
        raise ValueError(
            f"{name}: batch {batch} (the first is 0) has values that are NaN, infinite or larger than {LARGEST_RANGE}; "
            "no range was changed"
        )
