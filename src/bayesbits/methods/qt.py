"""QT: quantization-aware training with ranges that follow the data and do not learn, rounded straight through.

B. Jacob et al., Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference, CVPR
2018. With the range [a, b] and n = 2^k levels:

    clamp(r; a, b) = min(max(r, a), b),   s = (b - a) / (n - 1),   q(r) = round((clamp(r; a, b) - a) / s) s + a
    weights:      the range is that of the present weight, in every step
    activations:  the range is an exponential moving average of that of the batches, and starts at the calibrated one
    backward:     rounding and ranges have no gradient of their own; d q / d r = 1 inside

Where it differs: ranges are symmetric, or start at 0 where there are no values below zero, so that zero is a grid point
without being moved there; batch norms keep the statistics of the batch while they train, and are not folded before;
activations are quantized from the first step, where the paper leaves them in float at the start. With activation
checkpointing the average takes every batch twice, as that of a batch norm does.
"""

import torch
from torch import Tensor, nn

from bayesbits.functional.grid import clip, step_size
from bayesbits.methods.method import Method
from bayesbits.methods.quantizer import SMALLEST_SCALE, MethodQuantizer

MOMENTUM = 0.99
"""How much of the average a batch leaves: the paper's smoothing parameter is "close to 1"."""


class QtQuantizer(MethodQuantizer):
    """A range that follows the values."""

    end: Tensor

    def make_parameters(self) -> None:
        self.register_buffer("end", torch.tensor(1.0))

    def quantize(self, x: Tensor) -> Tensor:
        beta = self.beta.to(x.dtype).clone()
        inside = clip(x, beta, self.signed)
        step, (low, high) = step_size(beta, self.present_bits, self.signed), self.bounds()
        return inside + ((inside / step).round().clamp(low, high) * step - inside).detach()

    @torch.no_grad()
    def follow(self, x: Tensor) -> None:
        if x.numel() == 0 or not (self.training or self.of_weight):
            return
        # The largest magnitude of a weight is its last code exactly.
        largest = (x.abs() if self.signed else x).amax().float().clamp_min(SMALLEST_SCALE)
        if self.of_weight:
            self.end.copy_(largest * (self.levels() / self.bounds()[1]))
        else:
            self.end.lerp_(largest, 1 - MOMENTUM)

    @property
    def beta(self) -> Tensor:
        return self.end

    def range_parameters(self) -> list[nn.Parameter]:
        return []

    def put_range(self, beta: float) -> None:
        self.end.fill_(beta)


METHOD = Method(
    name="qt",
    title="QT",
    paper="Jacob et al., Quantization and Training of Neural Networks for Efficient Inference, CVPR 2018",
    weights=QtQuantizer,
    activations=QtQuantizer,
    widths=(8, 8),
)
