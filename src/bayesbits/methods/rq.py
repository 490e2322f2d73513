"""RQ: logistic noise around a value makes rounding random, and a relaxed choice of the grid point differentiable.

C. Louizos et al., Relaxed Quantization for Discretized Neural Networks, ICLR 2019. With the grid g_i = s k_i, noise of
scale sigma and the logistic function S:

    p_i = S((g_i + s/2 - x) / sigma) - S((g_i - s/2 - x) / sigma), normalized over the grid
    z ~ Concrete(p, lambda): z_i = softmax_i((log p_i + G_i) / lambda),  G_i = -log(-log u_i)
    x_q = sum_i z_i g_i
    at test time x is rounded to the nearest grid point

s and sigma are learned; sigma starts at s / 3, and lambda is 2 here. Where it differs: the sum is over the five grid
points nearest to x, where the paper takes those within three standard deviations; the parameters are the logarithms of
s and of sigma / s; x is clipped to the grid first, which has the symmetric codes of `methods.quantizer`.
"""

import math

import torch
from torch import Tensor, nn

from bayesbits.methods.method import Method
from bayesbits.methods.quantizer import MethodQuantizer, round_through

TEMPERATURE = 2.0
REACH = 2
"""The grid points to either side of the nearest one that may be chosen."""
_SMALLEST_PROBABILITY = 1e-7


class RqQuantizer(MethodQuantizer):
    """A learned step, and noise of a learned scale in training."""

    learns_step = True

    def make_parameters(self) -> None:
        self.log_scale = nn.Parameter(torch.tensor(0.0))
        self.log_noise = nn.Parameter(torch.tensor(math.log(1 / 3)))

    def quantize(self, x: Tensor) -> Tensor:
        low, high = self.bounds()
        step = torch.exp(self.log_scale)
        position = (x / step).clamp(low, high)
        if not self.training:
            return round_through(position) * step
        uniform = [torch.rand_like(position) for _ in range(2 * REACH + 1)]
        return relaxed_rounding(position, torch.exp(self.log_noise), low, high, uniform) * step

    @property
    def beta(self) -> Tensor:
        return torch.exp(self.log_scale) * self.levels()

    def range_parameters(self) -> list[nn.Parameter]:
        return [self.log_scale, self.log_noise]

    def put_range(self, beta: float) -> None:
        self.log_scale.fill_(math.log(beta / self.levels()))


def relaxed_rounding(position: Tensor, noise: Tensor, low: int, high: int, uniform: list[Tensor]) -> Tensor:
    """A random mixture of the codes around each position, which is in steps as the noise is."""
    nearest = position.detach().round()
    scores, codes = [], []
    for offset, drawn in zip(range(-REACH, REACH + 1), uniform, strict=True):
        code = nearest + offset
        mass = torch.sigmoid((code + 0.5 - position) / noise) - torch.sigmoid((code - 0.5 - position) / noise)
        gumbel = -torch.log(-torch.log(drawn.clamp(1e-6, 1 - 1e-6)))
        score = (torch.log(mass.clamp_min(_SMALLEST_PROBABILITY)) + gumbel) / TEMPERATURE
        scores.append(torch.where((code >= low) & (code <= high), score, torch.full_like(score, -math.inf)))
        codes.append(code)
    most = scores[0]
    for score in scores[1:]:
        most = torch.maximum(most, score)
    weights = [torch.exp(score - most.detach()) for score in scores]
    total = sum(weights[1:], weights[0])
    mixed = sum((weight * code for weight, code in zip(weights[1:], codes[1:], strict=True)), weights[0] * codes[0])
    return mixed / total


METHOD = Method(
    name="rq",
    title="RQ",
    paper="Louizos et al., Relaxed Quantization for Discretized Neural Networks, ICLR 2019",
    weights=RqQuantizer,
    activations=RqQuantizer,
    widths=(8, 8),
)
