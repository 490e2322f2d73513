"""The quantizer in front of a hard-swish, x * clip(x + 3, 0, 6) / 6, which integers can compute from its codes.

Below -3 a hard-swish is zero, so the range starts there. If 3 is a whole number n of steps, then x is c steps and
x + 3 is c + n steps, of which the clipped sum has none to 2 n: a hard-swish is the product of two small integers.
"""

import math

import torch
from torch import Tensor, nn

from bayesbits.functional.grid import INTEGER_BITS
from bayesbits.nn.gated_quantizer import GatedQuantizer
from bayesbits.nn.quantizer import Ends

SHIFT = 3.0
"""How far below zero a hard-swish starts."""
FEWEST_STEPS = 8
"""With fewer steps below zero the range would grow by too much until it has a whole number of them."""
LONGEST = 1.25
"""A range that starts at -3 may be at most so many times as long as that of the values."""
NEAR_ZERO = 1e-3
"""The start of a range without values below zero, relative to its end."""


class HardSwishQuantizer(GatedQuantizer):
    """A quantizer of 8 bits with the range [-3, beta], of which the part below zero is a whole number of steps.

    For that the range ends a little above what it is given. The end learns: the gradient passes to the number in front
    of this rounding. The start does not. Where values stay far above -3, or where there would be fewer than
    `FEWEST_STEPS` below zero, the range has the ends that were given.
    """

    def __init__(self, *, gates: str = "hard_concrete", learn_range: bool = True) -> None:
        super().__init__(
            signed=True, beta=SHIFT, bits=(INTEGER_BITS,), gates=gates, learn_range=learn_range, asymmetric=True
        )

    def _learns(self) -> tuple[tuple[nn.Parameter, bool], ...]:
        assert self.log_alpha is not None
        return *(one for one in super()._learns() if one[0] is not self.log_alpha), (self.log_alpha, False)

    def learned_range_parameters(self) -> list[nn.Parameter]:
        """The logarithm of the end in front of its rounding."""
        return [self.log_beta]

    def possible_range_parameters(self) -> list[nn.Parameter]:
        """The same, where it is not frozen."""
        return [self.log_beta] if self.log_beta.requires_grad else []

    @property
    def beta(self) -> Tensor:
        """The end of the range."""
        assert self.log_alpha is not None
        wanted, length = self._learned_beta(), SHIFT * (2**INTEGER_BITS - 1)
        steps = torch.floor(length / (wanted.detach() + SHIFT) + 1e-3)  # rounding does not move a whole number
        whole = length / steps.clamp(1.0, 2.0**INTEGER_BITS - 2) - SHIFT  # one step above zero at least
        starts_at_shift = (self.log_alpha.detach() - math.log(SHIFT)).abs() < 1e-6
        return wanted + torch.where(starts_at_shift & (steps >= FEWEST_STEPS), whole - wanted.detach(), 0.0)

    def _set_range(self, kind: str, beta: Ends, alpha: Ends | None) -> None:
        """Set the end, and the start at -3 unless that is far below what is given."""
        high = float(torch.as_tensor(beta))
        low = -float(torch.as_tensor(alpha)) if alpha is not None else high if kind == "symmetric" else NEAR_ZERO * high
        far = high + SHIFT > LONGEST * (high + low)
        few = FEWEST_STEPS * (high + SHIFT) > SHIFT * (2**INTEGER_BITS - 1)
        super()._set_range("asymmetric", beta, -low if far or few else -SHIFT)

    def set_kind(self, kind: str) -> None:
        """Stay a range with two ends."""
        self.signed = self.asymmetric = True
