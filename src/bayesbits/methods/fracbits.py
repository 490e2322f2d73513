"""FracBits: a width between two whole numbers is a mixture of the two, and learns by the difference between them.

L. Yang and Q. Jin, FracBits: Mixed Precision Quantization via Fractional Bit-Widths, AAAI 2021. For a width n:

    Q_n(x) = (ceil(n) - n) Q_floor(n)(x) + (n - floor(n)) Q_ceil(n)(x)
    d Q_n / d n = Q_ceil(n)(x) - Q_floor(n)(x)
    the loss has the cost with fractional widths times a weight; at the end n is rounded to the nearest whole number

Where it differs: the quantizers in the mixture round to the grid of a learned range, as those of Bayesian Bits at a
fixed width, where the paper takes DoReFa and PACT; the penalty is on relative bit operations, without a target; and
widths start at 8 bits. A width stays between the narrowest and the widest of `Spec.bits`. Rounding is at the end of the
search, and what it changes is trained only by fine-tuning behind it.
"""

import math

import torch
from torch import Tensor, nn

from bayesbits.functional.grid import EDGE
from bayesbits.methods.method import Method
from bayesbits.methods.quantizer import MethodQuantizer, bounded


class FracBitsQuantizer(MethodQuantizer):
    """A learned fractional width in a learned range."""

    learns_width = True

    def make_parameters(self) -> None:
        self.width = nn.Parameter(torch.tensor(float(self.start_bits)))
        self.log_beta = nn.Parameter(torch.tensor(0.0))

    def quantize(self, x: Tensor) -> Tensor:
        beta = torch.exp(self.log_beta)
        if self.mode == "fixed":
            return rounded(x, beta, torch.full_like(beta, self.present_bits), self.signed)
        width = self.expected_bits()
        narrow = width.detach().floor().clamp(self.bits[0], max(self.bits[-1] - 1, self.bits[0]))
        part = width - narrow
        if not self.training:
            return rounded(x, beta, width.detach().round(), self.signed)
        narrower, wider = (rounded(x, beta, bits, self.signed) for bits in (narrow, narrow + 1))
        return (1 - part) * narrower + part * wider

    def expected_bits(self) -> Tensor:
        return bounded(self.width, self.bits[0], self.bits[-1])

    def effective_bits(self) -> int:
        return int(self.expected_bits().round().item()) if self.fixed_bits is None else self.fixed_bits

    @property
    def beta(self) -> Tensor:
        return torch.exp(self.log_beta)

    def width_parameters(self) -> list[nn.Parameter]:
        return [self.width]

    def range_parameters(self) -> list[nn.Parameter]:
        return [self.log_beta]

    def put_range(self, beta: float) -> None:
        self.log_beta.fill_(math.log(beta))


def rounded(x: Tensor, beta: Tensor, bits: Tensor, signed: bool) -> Tensor:
    """x on the grid of a range at a width that is a tensor; gradients of x and beta as in `functional.reference`."""
    upper = beta * EDGE
    clipped = torch.clamp(x, -upper if signed else torch.zeros_like(upper), upper)
    step = (beta * 2 if signed else beta) / (torch.exp2(bits) - 1)
    return ((clipped / step).round() - clipped / step).detach() * step + clipped


METHOD = Method(
    name="fracbits",
    title="FracBits",
    paper="Yang and Jin, FracBits: Mixed Precision Quantization via Fractional Bit-Widths, AAAI 2021",
    weights=FracBitsQuantizer,
    activations=FracBitsQuantizer,
)
