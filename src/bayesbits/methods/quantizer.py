"""What the quantizers of all methods share: modes, precision, stretched ranges, and rounding with a gradient.

A subclass writes the equation of its paper in `quantize`, in plain operations that autograd and compilers can read. It
is called with float32 numbers. In training it may be soft or random; in evaluation it returns what is deployed.

Its grid is the one of `functional.grid`: codes are symmetric where they are signed (-7..7 at 4 bits), so that layers
can be deployed with the sign of a batch norm's factor, and start at 0 where they are not. Papers that also use the code
-8 lose it here; at 2 bits weights are ternary in every method, as they are in Bayesian Bits. A layer whose weights and
inputs both have at most 8 bits adds its bias in whole steps of its accumulator, as it is deployed, where most papers
have it in float; that of `methods.pact`, whose weights are not deployed, does not.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayesbits.functional.grid import arithmetic_dtype, code_bounds
from bayesbits.functional.operation import check_range
from bayesbits.nn.gates import Gates
from bayesbits.nn.quantizer import Ends, Quantizer, broadcasting

SMALLEST_SCALE = 1e-12
"""Learned scales stay above this, so that they can be divided by."""
START_BITS = 8
"""Where learned widths start, as far as the widths that are allowed go."""


class MethodQuantizer(Quantizer):
    """The quantizer of another method, for a weight or for an activation; with one range for the whole tensor."""

    learns_width: ClassVar[bool] = False
    """Whether the width is learned; otherwise it is fixed from the start."""
    learns_step: ClassVar[bool] = False
    """Whether the step is what is learned, so that a width in the place of another one would give another range."""
    only_bits: ClassVar[int | None] = None
    """The width of the grid, where the method has no other one."""

    present_bits: int
    """The width of the grid: the fixed one, the latest where there is none, and the widest while it is learned."""

    def __init__(self, *, weight: bool, bits: Sequence[int]) -> None:
        """`weight`: whether it is for a weight, whose range is symmetric; `bits`: the widths, or the only one."""
        super().__init__(signed=weight, bits=bits, learn_range=True)
        self.of_weight = weight
        self.present_bits = self.bits[-1]
        self.gates = Gates(0, open_first=True)
        self.make_parameters()
        self.enter("learning" if self.learns_width else "fixed", None if self.learns_width else self.bits[0])

    def make_parameters(self) -> None:
        """Make what is learned, for a range that ends at 1."""
        raise NotImplementedError

    def quantize(self, x: Tensor) -> Tensor:
        """x quantized, in its own precision."""
        raise NotImplementedError

    def regularizer(self) -> Tensor | None:
        """What the method adds to the loss for this quantizer; None where it adds nothing."""
        return None

    def expected_bits(self) -> Tensor:
        """The width that is learned, differentiable in what decides it; a penalty charges for it."""
        raise NotImplementedError

    @property
    def start_bits(self) -> int:
        """Where a learned width starts."""
        return min(max(START_BITS, self.bits[0]), self.bits[-1])

    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest code at the present width."""
        return code_bounds(self.present_bits, self.signed)

    def levels(self) -> float:
        """beta in steps at the present width: s = beta / levels."""
        return float(2**self.present_bits - 1) / (2 if self.signed else 1)

    def effective_bits(self) -> int:
        return self.present_bits if self.fixed_bits is None else self.fixed_bits

    def enter(self, mode: str, fixed_bits: int | None) -> None:
        super().enter(mode, fixed_bits)
        self.present_bits = self.bits[-1] if mode == "learning" else fixed_bits or self.present_bits

    def check_width(self, bits: int, name: str = "a weight") -> None:
        if self.only_bits is not None and bits not in (0, self.only_bits):
            raise ValueError(
                f"{name} has a method whose grid has {self.only_bits} bits, and cannot have {bits}: give it "
                f"{self.only_bits} bits, or attach with a rule that gives it {bits}"
            )

    def fix(self, bits: int | None = None) -> None:
        with self._same_range():
            super().fix(bits)

    def learn(self) -> None:
        with self._same_range():
            super().learn()

    @contextmanager
    def _same_range(self) -> Iterator[None]:
        """A width in the place of another one keeps the range, not the step."""
        before, beta = self.present_bits, self.beta.item()
        yield
        if self.learns_step and self.present_bits != before:
            with torch.no_grad():
                self.put_range(beta)

    def forward(self, x: Tensor, stretch: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        if self.mode == "off":
            return x
        values = x.to(arithmetic_dtype(x.dtype))
        if self.fixed_bits == 0:
            quantized = values * 0.0
        else:
            self.follow(values)
            quantized = self.quantize(values) if stretch is None else self.quantize_stretched(values, stretch)
        return quantized.to(x.dtype if dtype is None else dtype)

    def quantize_stretched(self, x: Tensor, stretch: Tensor) -> Tensor:
        """x on a grid that is coarser by a factor, for each index of axis 0."""
        factor = broadcasting(stretch, x)
        return self.quantize(x / factor) * factor

    @torch.no_grad()
    def codes(self, x: Tensor, stretch: Tensor | None = None) -> Tensor:
        """What evaluation emits, in steps: a method may find its codes in another way than by rounding."""
        training, values = self.training, x.to(arithmetic_dtype(x.dtype))
        emitted: Tensor = self.eval()(values, stretch)
        self.train(training)
        step = self.step() if stretch is None else self.step() * broadcasting(stretch, x)
        return (emitted / step).round().int()

    def _learns(self) -> tuple[tuple[nn.Parameter, bool], ...]:
        width = tuple((parameter, self.mode == "learning") for parameter in self.width_parameters())
        ranges = tuple((parameter, self.mode != "off") for parameter in self.range_parameters())
        return ((self.gates.logits, False), *width, *ranges)

    def _set_range(self, kind: str, beta: Ends, alpha: Ends | None) -> None:
        self.set_kind(kind)  # raises where it is asymmetric: no method here has a second end
        end = torch.as_tensor(beta, dtype=torch.float64)
        if end.numel() != 1:
            raise ValueError(f"the quantizers of this method have one range for a tensor, and {end.numel()} were given")
        with torch.no_grad():
            self.put_range(check_range(end.item()))

    def put_range(self, beta: float) -> None:
        """Write the end of the range into the parameters."""
        raise NotImplementedError


def round_through(x: Tensor) -> Tensor:
    """x rounded half to even; the gradient passes straight through."""
    return x + (x.round() - x).detach()


def ceil_through(x: Tensor) -> Tensor:
    """x rounded up; the gradient passes straight through."""
    return x + (x.ceil() - x).detach()


def bounded(x: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """x between two ends, with a gradient that can bring it back from beyond them, where that of a clamp is zero.

    Beyond an end x gets those gradients whose descent leads inside, so that it neither stays there for good nor drifts
    away; and the end itself gets all of them.
    """
    ends = (end if isinstance(end, Tensor) else torch.full_like(x, end) for end in (low, high))
    result: Tensor = _Bounded.apply(x, *ends)  # type: ignore[no-untyped-call]
    return result


class _Bounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        ctx.save_for_backward(x < low, x > high)
        return torch.minimum(torch.maximum(x, low), high)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        below, above = ctx.saved_tensors
        (gradient,) = gradients
        stopped = (below & (gradient > 0)) | (above & (gradient < 0))
        return gradient.masked_fill(stopped, 0.0), gradient * below, gradient * above


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """x, whose gradient is multiplied by a factor."""
    return x * factor + (x * (1 - factor)).detach()
