"""DQ: step and range are learned, the width follows from them, and a penalty on the cost makes it small.

S. Uhlich et al., Mixed Precision DNNs: All you need is a good parametrization, ICLR 2020, its case U3. With the step d
and the range q_max:

    Q(x) = sign(x) d floor(|x| / d + 1/2) for |x| <= q_max,  sign(x) q_max beyond
    b = ceil(log2(q_max / d + 1) + 1) signed, ceil(log2(q_max / d + 1)) unsigned
    d Q / d d = (Q(x) - x) / d inside, 0 beyond
    d Q / d q_max = 0 inside, sign(x) beyond;  d Q / d x = 1 inside, 0 beyond
    the loss has a penalty on what the network costs with the widths b; the ceiling passes gradients straight through

Where it differs: the cost is that of the package, relative bit operations, as in the comparison of the Bayesian Bits
paper, and not a limit on bytes; the parameters are log2 d and log2 q_max, so that a step of any optimizer is a relative
one; d is no power of two; and q_max is rounded to a whole number of steps, from which the width follows, so that it
lies on the grid. Widths start at 8 bits, and stay between the narrowest and the widest of `Spec.bits`.

The width that was learned is fixed with the grid that was learned: codes end at q_max / d, which may come before the
last code of the width. Another width keeps q_max, as it was rounded, and has the step of its whole grid; so has one
above 16 bits, where there are no codes.

DQ-restricted is the same with the widths rounded up to those of `Spec.bits`, the powers of two by default, which
hardware has. The penalty is that of the widths before they are rounded up, so that it has a gradient between them.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesbits.functional.grid import CODE_BITS, code_bounds
from bayesbits.methods.method import Method
from bayesbits.methods.quantizer import MethodQuantizer, bounded, ceil_through, round_through


class DqQuantizer(MethodQuantizer):
    """A learned step and a learned range, from which the width follows."""

    learns_width = True
    restricted: ClassVar[bool] = False
    """Whether widths are rounded up to those of the spec."""

    learned_grid: tuple[int, int] | None = None
    """The width that was learned and the last code of its grid; None while a width is learned, and above 16 bits."""

    def __init__(self, *, weight: bool, bits: Sequence[int]) -> None:
        super().__init__(weight=weight, bits=bits)
        self.put_range(1.0)

    def make_parameters(self) -> None:
        self.log2_step = nn.Parameter(torch.tensor(0.0))
        self.log2_range = nn.Parameter(torch.tensor(0.0))

    def quantize(self, x: Tensor) -> Tensor:
        if self.mode == "fixed":
            step, (low, high) = self.step(), self.code_bounds()
            return round_through((x / step).clamp(low, high)) * step
        step, end = self.learned_step(), torch.exp2(self.log2_range)
        magnitude = x.abs() if self.signed else x.clamp_min(0.0)
        inside = round_through(x / step) * step
        last = end + (torch.round(end / step) * step - end).detach()
        beyond = x.sign() * last
        kept = torch.where(magnitude <= end, inside, beyond)
        return kept if self.signed else torch.where(x >= 0, kept, torch.zeros_like(x))

    def learned_step(self) -> Tensor:
        """d, between what the widest and what the narrowest width has."""
        widest, narrowest = (code_bounds(bits, self.signed)[1] for bits in (self.bits[-1], self.bits[0]))
        ends = (self.log2_range - math.log2(last) for last in (widest, narrowest))
        return torch.exp2(bounded(self.log2_step, *ends))

    def width(self) -> Tensor:
        """b before it is rounded up."""
        # The logarithm of a power of two, which may be inexact, is not to be rounded up to the next width.
        return torch.log2(self._steps() + 1) * (1 - 1e-6) + int(self.signed)

    def _steps(self) -> Tensor:
        """q_max in steps, rounded."""
        return round_through(torch.exp2(self.log2_range) / self.learned_step())

    def expected_bits(self) -> Tensor:
        """The width that the penalty charges for."""
        return ceil_through(self.width()).clamp(self.bits[0], self.bits[-1])

    def effective_bits(self) -> int:
        return self.decided_bits() if self.fixed_bits is None else self.fixed_bits

    def decided_bits(self) -> int:
        """The width that step and range say."""
        width = int(self.expected_bits().item())
        if not self.restricted:
            return width
        return next((allowed for allowed in self.bits if allowed >= width), self.bits[-1])

    @property
    def last_code(self) -> int | None:
        if self.mode != "learning":
            width, last = self.learned_grid or (None, None)
            return last if width is not None and width == self.fixed_bits else None
        if self.decided_bits() > CODE_BITS:
            return None
        return int(self._steps().item())

    @torch.no_grad()
    def fix(self, bits: int | None = None) -> None:
        if self.mode == "learning":
            width, last = self.decided_bits(), self.last_code
            self.learned_grid = None if last is None else (width, last)
            if last is not None:
                self.log2_range.copy_(torch.log2(last * self.learned_step()))
        super().fix(bits)

    @torch.no_grad()
    def learn(self) -> None:
        if self.learned_grid is not None:
            self.log2_step.copy_(self.log2_range - math.log2(self.learned_grid[1]))
            self.learned_grid = None
        super().learn()

    def get_extra_state(self) -> Tensor:
        """What every quantizer has, and the grid that was learned."""
        return torch.cat([super().get_extra_state(), torch.tensor(self.learned_grid or (), dtype=torch.long)])

    def set_extra_state(self, state: Tensor) -> None:
        super().set_extra_state(state[:3])
        width, last = state[3:].tolist() or (0, 0)
        self.learned_grid = (width, last) if last else None

    @property
    def beta(self) -> Tensor:
        """The end of the whole grid of the width, of which codes may use a part."""
        width, last = self.fixed_bits or self.decided_bits(), self.last_code
        if self.mode == "learning" and last is not None:
            step = self.learned_step()
        else:
            step = torch.exp2(self.log2_range) / (last or code_bounds(width, self.signed)[1])
        return step * (float(2**width - 1) / (2 if self.signed else 1))

    def width_parameters(self) -> list[nn.Parameter]:
        return [self.log2_step]

    def range_parameters(self) -> list[nn.Parameter]:
        return [self.log2_range]

    @torch.no_grad()
    def put_range(self, beta: float) -> None:
        width = self.fixed_bits or self.start_bits
        low, high = code_bounds(width, self.signed)
        self.learned_grid = None
        end = beta * (high - low) / float(2**width - 1)
        self.log2_range.fill_(math.log2(end))
        self.log2_step.fill_(math.log2(end / high))


class RestrictedDqQuantizer(DqQuantizer):
    """The same, with widths rounded up to those of the spec."""

    restricted = True


PAPER = "Uhlich et al., Mixed Precision DNNs: All you need is a good parametrization, ICLR 2020"
METHOD = Method(name="dq", title="DQ", paper=PAPER, weights=DqQuantizer, activations=DqQuantizer)
RESTRICTED = Method(
    name="dq_restricted",
    title="DQ-restricted",
    paper=PAPER,
    weights=RestrictedDqQuantizer,
    activations=RestrictedDqQuantizer,
)
