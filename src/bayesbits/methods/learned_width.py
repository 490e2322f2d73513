"""A learned step with the width as a parameter of its own.

S. Uhlich et al., Mixed Precision DNNs: All you need is a good parametrization, ICLR 2020, its case U1, which the paper
finds harder to train than the one of `methods.dq`. With the step d, the width b and K = 2^(b-1) - 1 signed, 2^b - 1
unsigned:

    Q(x) = d clip(round(x / d), -K, K) signed, d clip(round(x / d), 0, K) unsigned
    d Q / d d = (Q(x) - x) / d inside, K sign(x) beyond;   d Q / d x = 1 inside, 0 beyond
    d Q / d b = 0 inside, sign(x) d ln 2 2^(b-1) signed (2^b unsigned) beyond
    the loss has a penalty on what the network costs with the widths b

b is rounded to the nearest whole number, which passes gradients straight through. Where it differs: the parameter of
the step is its logarithm to base 2, and the cost is relative bit operations. Widths start at 8 bits, and stay between
the narrowest and the widest of `Spec.bits`; a narrower width at the same step is a smaller range. A width that is fixed
keeps the step.
"""

import math

import torch
from torch import Tensor, nn

from bayesbits.methods.method import Method
from bayesbits.methods.quantizer import MethodQuantizer, bounded, round_through


class LearnedWidthQuantizer(MethodQuantizer):
    """A learned step and a learned width."""

    learns_width = True

    def make_parameters(self) -> None:
        self.width = nn.Parameter(torch.tensor(float(self.start_bits)))
        self.log2_step = nn.Parameter(torch.tensor(0.0))

    def quantize(self, x: Tensor) -> Tensor:
        step = torch.exp2(self.log2_step)
        last = self._last_code()
        position = torch.clamp(x / step, -last if self.signed else torch.zeros_like(last), last)
        return round_through(position) * step

    def _last_code(self) -> Tensor:
        """K, differentiable in the width."""
        bits = self.expected_bits() if self.mode == "learning" else torch.full_like(self.width, self.present_bits)
        return torch.exp2(bits - int(self.signed)) - 1

    def expected_bits(self) -> Tensor:
        return round_through(bounded(self.width, self.bits[0], self.bits[-1]))

    def effective_bits(self) -> int:
        return int(self.expected_bits().item()) if self.fixed_bits is None else self.fixed_bits

    @property
    def beta(self) -> Tensor:
        width = self.effective_bits() or self.bits[-1]
        return torch.exp2(self.log2_step) * (float(2**width - 1) / (2 if self.signed else 1))

    def width_parameters(self) -> list[nn.Parameter]:
        return [self.width]

    def range_parameters(self) -> list[nn.Parameter]:
        return [self.log2_step]

    def put_range(self, beta: float) -> None:
        width = self.effective_bits() or self.bits[-1]
        self.log2_step.fill_(math.log2(beta / ((2**width - 1) / (2 if self.signed else 1))))


METHOD = Method(
    name="learned_width",
    title="Learned step and width",
    paper="Uhlich et al., Mixed Precision DNNs: All you need is a good parametrization, ICLR 2020, case U1",
    weights=LearnedWidthQuantizer,
    activations=LearnedWidthQuantizer,
)
