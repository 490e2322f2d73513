"""Steady channels: constants in front of a batch norm that is folded into no layer.

A dead channel of a trained network is a constant, and its variance is nearly zero. A quantizer rounds the constant by
up to half a step, and a batch norm behind it divides that by the tiny standard deviation: the output is off by hundreds
of standard deviations. Nothing that such a channel does is as large as its rounding. So once widths are final the batch
norm gives what it gives for the channel's mean, which is its shift: the scale of the channel is zero.

A channel is steady where no value that calibration saw is half a step or more from the running mean, and neither is the
running standard deviation. For values that are spread evenly within half a step, the mean is as near as rounded values
are; for those that are spread less, it is nearer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.nn.quantizer import Quantizer


@dataclass
class ChannelRun:
    """Neighboring channels that the same quantizers round."""

    quantizers: tuple[Quantizer, ...]
    size: int

    def step(self, like: Tensor) -> Tensor:
        """The largest step of the quantizers whose width is final; zero where there are none."""
        rounding = [quantizer for quantizer in self.quantizers if quantizer.mode == "fixed" and quantizer.fixed_bits]
        steps = [quantizer.step().detach().to(like).reshape(()) for quantizer in rounding]
        return torch.stack([like.new_zeros(()), *steps]).amax()


class SteadyChannels(nn.Module):
    """The channels that a batch norm reads: which values calibration saw, and which quantizers round them."""

    low: Tensor
    """The smallest value of each channel; minus infinity where nobody has looked."""
    high: Tensor
    """The largest value of each channel."""

    def __init__(self, runs: Sequence[ChannelRun]) -> None:
        super().__init__()
        self.runs = tuple(runs)
        size = sum(run.size for run in runs)
        self.register_buffer("low", torch.full((size,), -inf))
        self.register_buffer("high", torch.full((size,), inf))

    def see(self, low: Tensor, high: Tensor) -> None:
        """Keep the extremes of each channel."""
        with torch.no_grad():
            self.low.copy_(low)
            self.high.copy_(high)

    def mask(self, mean: Tensor, variance: Tensor) -> Tensor | None:
        """True for every channel that is steady around this mean; None where no width is final."""
        if not any(q.mode == "fixed" for run in self.runs for q in run.quantizers):
            return None
        half = torch.cat([run.step(mean).expand(run.size) for run in self.runs]) / 2
        farthest = torch.maximum(self.high.to(mean) - mean, mean - self.low.to(mean))
        return (farthest < half) & (variance < half.square())

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        """Files of earlier versions have no extremes, and no channel is steady then."""
        for name in ("low", "high"):
            state.setdefault(prefix + name, torch.full_like(getattr(self, name), -inf if name == "low" else inf))
        super()._load_from_state_dict(state, prefix, *others)
