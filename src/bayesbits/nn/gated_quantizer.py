"""The central idea: a quantizer that learns its number of bits.

    x_q = z_2 (x_2 + z_4 (eps_4 + z_8 (eps_8 + z_16 (eps_16 + z_32 eps_32))))

x_2 is x rounded to the grid of 2 bits, and each eps_b is the residual that b bits add. A gate z_b that closes switches
all wider ones off, so that the open gates say how many bits there are. The gates and the range learn by gradient
descent together with the weights. `functional.reference` computes the equation and its gradients.

A range is unsigned, [0, beta], symmetric, [-beta, beta], or asymmetric, [alpha, beta] with alpha < 0 < beta. The
parameters are the logarithms of beta and of -alpha, so that zero stays inside. Weights are symmetric, as integer layers
want it. Which of the three the range of an activation is, calibration decides; it is part of the state.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.functional import code_bounds, gated_quantize, quantize_to_codes, step_size
from bayesbits.functional.grid import MIN_BITS, check_bits
from bayesbits.functional.operation import check_range
from bayesbits.nn.gates import Gates

_LARGEST_LOGARITHM = 60.0  # ranges from 1e-26 to 1e26, which float32 can divide into steps
_MODES = ("learning", "fixed", "off")
KINDS = ("unsigned", "symmetric", "asymmetric")
"""The kinds of ranges; the state has their positions."""


class GatedQuantizer(nn.Module):
    """Quantizes a tensor to a learned number of bits.

    `mode` is "learning" (gates decide), "fixed" (a given width; the range still learns) or "off" (the identity).
    `beta` is the initial end of the range: a number, or one for each index of axis 0. With `zero` the gate of the
    lowest width learns too and can switch the whole tensor to 0 bits; without, it is always open. Without `learn_range`
    the range stays where it is put: a network's input then needs no gradient, nor does the layer behind it compute one.
    With `asymmetric` the quantizer has a parameter for a second end, and starts with the range [-beta, beta];
    `set_range` makes it unsigned where there are no values below zero.
    """

    def __init__(
        self,
        *,
        signed: bool,
        beta: float | Sequence[float] | Tensor = 1.0,
        bits: Sequence[int] = (2, 4, 8, 16, 32),
        gates: str = "hard_concrete",
        zero: bool = False,
        learn_range: bool = True,
        asymmetric: bool = False,
    ) -> None:
        super().__init__()
        check_bits(tuple(bits))
        self.signed, self.asymmetric, self.learn_range = signed or asymmetric, asymmetric, learn_range
        self.bits = tuple(bits)
        self.gates = Gates(len(self.bits) - (not zero), kind=gates, open_first=not zero)
        self.log_beta = nn.Parameter(_checked_logarithm(beta))
        if asymmetric and self.log_beta.dim():
            raise ValueError("a quantizer with a range for each index of axis 0 cannot be asymmetric")
        self.log_alpha = nn.Parameter(self.log_beta.detach().clone()) if asymmetric else None
        self.mode = "off"
        self.enter("learning", None)

    def enter(self, mode: str, fixed_bits: int | None) -> None:
        """Go into a mode. Parameters that do not learn in it require no gradient, as parallel training waits for those.

        A parameter that could learn in the mode before, and was frozen by `requires_grad_(False)`, stays frozen.
        """
        frozen = [learns and not parameter.requires_grad for parameter, learns in self._learns()]
        self.mode, self.fixed_bits = mode, fixed_bits
        for (parameter, learns), stays in zip(self._learns(), frozen, strict=True):
            parameter.requires_grad_(learns and not stays)

    def _learns(self) -> tuple[tuple[nn.Parameter, bool], ...]:
        """Logits and ends of the range, and whether the mode lets them learn."""
        logits = self.gates.logits
        learns = self.mode != "off" and self.learn_range
        ends = () if self.log_alpha is None else ((self.log_alpha, learns and self.asymmetric),)
        return ((logits, self.mode == "learning" and logits.numel() > 0), (self.log_beta, learns), *ends)

    @property
    def beta(self) -> Tensor:
        """The end of the range; positive and finite for any value of its logarithm, which is the parameter."""
        return _exponential(self.log_beta)

    @property
    def alpha(self) -> Tensor | None:
        """The lower end of an asymmetric range, below zero; None where the range is symmetric or unsigned."""
        if not self.asymmetric:
            return None
        assert self.log_alpha is not None
        return -_exponential(self.log_alpha)

    def range_parameters(self) -> list[nn.Parameter]:
        """The parameters of the present range: the logarithm of beta, and of -alpha where the range is asymmetric."""
        return [self.log_beta] if self.log_alpha is None or not self.asymmetric else [self.log_beta, self.log_alpha]

    def set_range(
        self,
        beta: float | Sequence[float] | Tensor,
        *,
        signed: bool | None = None,
        alpha: float | Tensor | None = None,
    ) -> None:
        """Set the end of the range, and the sign where one is given; with `alpha` the range becomes asymmetric."""
        upper = _checked_logarithm(beta)
        if alpha is None:
            kind = "symmetric" if (self.signed if signed is None else signed) else "unsigned"
        else:
            kind = "asymmetric"
            lower = _checked_logarithm(-alpha)
        self.set_kind(kind)
        with torch.no_grad():
            self.log_beta.copy_(upper)
            if alpha is not None:
                assert self.log_alpha is not None
                self.log_alpha.copy_(lower)

    @property
    def kind(self) -> str:
        """Which of `KINDS` the range is."""
        return KINDS[self.signed + self.asymmetric]

    def set_kind(self, kind: str) -> None:
        """Make the range one of another kind, with the ends that it has; a new end learns where the other one does."""
        if kind == "asymmetric" and self.log_alpha is None:
            raise ValueError(
                "a range with two ends was given to a quantizer that is symmetric or unsigned: attach with "
                "Spec(asymmetric_activations=True), or use ranges that were made without it"
            )
        self.signed, self.asymmetric = kind != "unsigned", kind == "asymmetric"
        if self.log_alpha is not None:
            self.log_alpha.requires_grad_(self.asymmetric and self.log_beta.requires_grad)

    def forward(self, x: Tensor, stretch: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """x quantized, in its own or another dtype; `stretch` multiplies the range of each index of axis 0."""
        if self.mode == "off":
            return x
        beta, alpha = self.beta if stretch is None else self.beta * stretch, self.alpha
        if self.mode == "learning":
            return gated_quantize(x, beta, self.gates(), signed=self.signed, bits=self.bits, alpha=alpha, dtype=dtype)
        width = self.fixed_bits or MIN_BITS
        gate = self.log_beta.new_full((1,), 1.0 if self.fixed_bits else 0.0)
        return gated_quantize(x, beta, gate, signed=self.signed, bits=(width,), alpha=alpha, dtype=dtype)

    def effective_bits(self) -> int:
        """The number of bits by the test-time decision; 0 where the whole tensor is switched off."""
        if self.mode == "fixed":
            assert self.fixed_bits is not None
            return self.fixed_bits
        width = self.bits[0] if self.gates.open_first else 0
        remaining = self.bits[1:] if self.gates.open_first else self.bits
        for candidate, is_open in zip(remaining, self.gates.decision().tolist(), strict=True):
            if not is_open:
                break
            width = candidate
        return width

    def step(self) -> Tensor:
        """The distance between two neighboring codes at the effective bits."""
        return step_size(self.beta, self.effective_bits() or MIN_BITS, self.signed, self.alpha)

    def code_bounds(self) -> tuple[int, int]:
        """The smallest and the largest code at the effective bits."""
        bits, alpha = self.effective_bits(), self.alpha
        if alpha is None:
            return code_bounds(bits, self.signed)
        alpha, beta, bits = alpha.detach(), self.beta.detach(), bits or MIN_BITS
        step = step_size(beta, bits, True, alpha)
        low = int(torch.round(alpha / step))
        return low, min(int(torch.round(beta / step)), low + 2**bits - 1)  # whole numbers: float32 ends at 24 bits

    def codes(self, x: Tensor, stretch: Tensor | None = None) -> Tensor:
        """The integer codes of x at the effective bits; `stretch` as in calling the quantizer."""
        width = self.effective_bits()
        beta = (self.beta if stretch is None else self.beta * stretch).detach()
        beta = beta.reshape(-1, *[1] * (x.dim() - 1)) if beta.dim() else beta
        codes = quantize_to_codes(x, beta, bits=width or MIN_BITS, signed=self.signed, alpha=self.alpha)
        return codes * (width > 0)

    def fix(self, bits: int | None = None) -> None:
        """Make a width final: 0, any from 2 to 32, or the present decision. The range must be usable by now."""
        bits = self.effective_bits() if bits is None else bits
        if bits != 0:
            check_bits((bits,))
        self.check_range()
        self.enter("fixed", bits)

    def check_range(self, name: str = "a quantizer") -> None:
        """Raise unless the range is usable, that is neither NaN nor too small or large for its steps."""
        try:
            _checked_logarithm(self.beta.detach())
            if self.alpha is not None:
                _checked_logarithm(-self.alpha.detach())
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    def learn(self) -> None:
        """Let the gates decide (again)."""
        self.enter("learning", None)

    def turn_off(self) -> None:
        """Pass tensors through unchanged."""
        self.enter("off", None)

    def get_extra_state(self) -> Tensor:
        """Kind of the range, mode and fixed width: a tensor, so that any checkpoint format can hold it."""
        return torch.tensor([KINDS.index(self.kind), _MODES.index(self.mode), self.fixed_bits or 0])

    def set_extra_state(self, state: Tensor) -> None:
        kind, mode, bits = state.tolist()
        self.set_kind(KINDS[kind])
        self.enter(_MODES[mode], bits if _MODES[mode] == "fixed" else None)

    def _load_from_state_dict(
        self, state: Any, prefix: str, metadata: Any, strict: bool, missing: list[str], unexpected: list[str],
        errors: list[str],
    ) -> None:  # fmt: skip
        """A state without a second end, as quantizers had it that cannot be asymmetric, has no use for one."""
        super()._load_from_state_dict(state, prefix, metadata, strict, missing, unexpected, errors)
        key = f"{prefix}log_alpha"
        if key in missing and f"{prefix}log_beta" in state and not self.asymmetric:
            missing.remove(key)

    def extra_repr(self) -> str:
        beta = self.beta.detach()
        span = f"{beta.item():.4g}" if beta.numel() == 1 else f"{beta.numel()} x ({beta.min():.4g} to {beta.max():.4g})"
        decision = "off" if self.mode == "off" else f"{self.mode} {self.effective_bits()} bits"
        if self.alpha is not None:
            return f"{decision} of {self.bits}, asymmetric, alpha={self.alpha.item():.4g}, beta={span}"
        return f"{decision} of {self.bits}, {'signed' if self.signed else 'unsigned'}, beta={span}"


def _exponential(logarithm: Tensor) -> Tensor:
    return logarithm.float().clamp(-_LARGEST_LOGARITHM, _LARGEST_LOGARITHM).exp()


def _checked_logarithm(beta: float | Sequence[float] | Tensor) -> Tensor:
    values = torch.as_tensor(beta, dtype=torch.float64)
    if values.dim() > 1 or values.numel() == 0:
        raise ValueError(
            f"beta must be a number or a vector with one for each index of axis 0, got shape {values.shape}"
        )
    for value in values.flatten().tolist():
        check_range(value)
    return values.log().to(torch.float32)
