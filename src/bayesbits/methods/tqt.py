"""TQT: the threshold is learned by its logarithm, and steps are powers of two.

S. R. Jain et al., Trained Quantization Thresholds for Accurate and Efficient Fixed-Point Inference of Deep Neural
Networks, MLSys 2020. With the threshold t, and p = 2^(b-1) - 1 for signed and 2^b - 1 for unsigned codes:

    s = 2^ceil(log2 t) / 2^(b-1) signed, 2^ceil(log2 t) / 2^b unsigned
    q(x) = s clip(round(x / s), n, p)
    d q / d log2 t = s ln 2 (round(x / s) - x / s  inside, n below, p above)
    d q / d x = 1 inside, 0 outside;  x is inside where n <= round(x / s) <= p

The ceiling passes gradients straight through, and so does rounding, but not by the same rule: x / s keeps its own
gradient. Where it differs: n = -p for signed codes (see `methods.quantizer`); thresholds start at the calibrated range
of weights and activations, where the paper takes three standard deviations of a weight, and a KL distance. As that
range ends half a step beyond the last signed code, a weight whose largest magnitude is a power of two, or up to half a
step below one, starts with twice the step that t = max|w| gives.
"""

import math

import torch
from torch import Tensor, nn

from bayesbits.methods.method import Method
from bayesbits.methods.quantizer import MethodQuantizer, ceil_through, round_through

_LARGEST_EXPONENT = 60.0


class TqtQuantizer(MethodQuantizer):
    """A power of two for a step, by the logarithm of a learned threshold."""

    def make_parameters(self) -> None:
        self.log2_threshold = nn.Parameter(torch.tensor(0.0))

    def quantize(self, x: Tensor) -> Tensor:
        low, high = self.bounds()
        step = self.power_of_two()
        return round_through(x / step).clamp(low, high) * step

    def power_of_two(self) -> Tensor:
        """s."""
        exponent = ceil_through(self.log2_threshold.clamp(-_LARGEST_EXPONENT, _LARGEST_EXPONENT))
        return torch.exp2(exponent - (self.present_bits - self.signed))

    @property
    def beta(self) -> Tensor:
        return self.power_of_two() * self.levels()

    def range_parameters(self) -> list[nn.Parameter]:
        return [self.log2_threshold]

    def put_range(self, beta: float) -> None:
        self.log2_threshold.fill_(math.log2(beta))


METHOD = Method(
    name="tqt",
    title="TQT",
    paper="Jain et al., Trained Quantization Thresholds for Accurate and Efficient Fixed-Point Inference, MLSys 2020",
    weights=TqtQuantizer,
    activations=TqtQuantizer,
    widths=(8, 8),
    ranges={"lr": 1e-2},
)
