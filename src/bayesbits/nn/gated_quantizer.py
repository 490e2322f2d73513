"""The central idea: a quantizer that learns its number of bits.

    x_q = z_2 (x_2 + z_4 (eps_4 + z_8 (eps_8 + z_16 (eps_16 + z_32 eps_32))))

x_2 is x rounded to the grid of 2 bits, and each eps_b is the residual that b bits add. A gate z_b that closes switches
all wider ones off, so that the open gates say how many bits there are. The gates and the end of the range, beta,
learn by gradient descent together with the weights. `functional.reference` computes the equation and its gradients.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bayesbits.functional import gated_quantize, quantize_to_codes, step_size
from bayesbits.functional.grid import MIN_BITS, check_bits
from bayesbits.functional.operation import check_range
from bayesbits.nn.gates import Gates

_LARGEST_LOGARITHM = 60.0  # ranges from 1e-26 to 1e26, which float32 can divide into steps
_MODES = ("learning", "fixed", "off")


class GatedQuantizer(nn.Module):
    """Quantizes a tensor to a learned number of bits.

    `mode` is "learning" (gates decide), "fixed" (a given width; the range still learns) or "off" (the identity).
    `beta` is the initial end of the range: a number, or one for each index of axis 0. With `zero` the gate of the
    lowest width learns too and can switch the whole tensor to 0 bits; without, it is always open. Without `learn_range`
    the range stays where it is put: a network's input then needs no gradient, nor does the layer behind it compute one.
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
    ) -> None:
        super().__init__()
        check_bits(tuple(bits))
        self.signed, self.learn_range = signed, learn_range
        self.bits = tuple(bits)
        self.gates = Gates(len(self.bits) - (not zero), kind=gates, open_first=not zero)
        self.log_beta = nn.Parameter(_checked_logarithm(beta))
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
        """Logits and range, and whether the mode lets them learn."""
        logits = self.gates.logits
        return (
            (logits, self.mode == "learning" and logits.numel() > 0),
            (self.log_beta, self.mode != "off" and self.learn_range),
        )

    @property
    def beta(self) -> Tensor:
        """The end of the range; positive and finite for any value of its logarithm, which is the parameter."""
        return self.log_beta.float().clamp(-_LARGEST_LOGARITHM, _LARGEST_LOGARITHM).exp()

    def set_range(self, beta: float | Sequence[float] | Tensor, *, signed: bool | None = None) -> None:
        """Set the end of the range, and the sign where one is given."""
        with torch.no_grad():
            self.log_beta.copy_(_checked_logarithm(beta))
        self.signed = self.signed if signed is None else signed

    def forward(self, x: Tensor, stretch: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """x quantized, in its own or another dtype; `stretch` multiplies the range of each index of axis 0."""
        if self.mode == "off":
            return x
        beta = self.beta if stretch is None else self.beta * stretch
        if self.mode == "learning":
            return gated_quantize(x, beta, self.gates(), signed=self.signed, bits=self.bits, dtype=dtype)
        width = self.fixed_bits or MIN_BITS
        gate = self.log_beta.new_full((1,), 1.0 if self.fixed_bits else 0.0)
        return gated_quantize(x, beta, gate, signed=self.signed, bits=(width,), dtype=dtype)

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
        return step_size(self.beta, self.effective_bits() or MIN_BITS, self.signed)

    def codes(self, x: Tensor, stretch: Tensor | None = None) -> Tensor:
        """The integer codes of x at the effective bits; `stretch` as in calling the quantizer."""
        width = self.effective_bits()
        beta = (self.beta if stretch is None else self.beta * stretch).detach()
        beta = beta.reshape(-1, *[1] * (x.dim() - 1)) if beta.dim() else beta
        return quantize_to_codes(x, beta, bits=width or MIN_BITS, signed=self.signed) * (width > 0)

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
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    def learn(self) -> None:
        """Let the gates decide (again)."""
        self.enter("learning", None)

    def turn_off(self) -> None:
        """Pass tensors through unchanged."""
        self.enter("off", None)

    def get_extra_state(self) -> Tensor:
        """Sign, mode and fixed width: a tensor, so that any checkpoint format can hold it."""
        return torch.tensor([int(self.signed), _MODES.index(self.mode), self.fixed_bits or 0])

    def set_extra_state(self, state: Tensor) -> None:
        signed, mode, bits = state.tolist()
        self.signed = bool(signed)
        self.enter(_MODES[mode], bits if _MODES[mode] == "fixed" else None)

    def extra_repr(self) -> str:
        beta = self.beta.detach()
        span = f"{beta.item():.4g}" if beta.numel() == 1 else f"{beta.numel()} x ({beta.min():.4g} to {beta.max():.4g})"
        decision = "off" if self.mode == "off" else f"{self.mode} {self.effective_bits()} bits"
        return f"{decision} of {self.bits}, {'signed' if self.signed else 'unsigned'}, beta={span}"


def _checked_logarithm(beta: float | Sequence[float] | Tensor) -> Tensor:
    values = torch.as_tensor(beta, dtype=torch.float64)
    if values.dim() > 1 or values.numel() == 0:
        raise ValueError(
            f"beta must be a number or a vector with one for each index of axis 0, got shape {values.shape}"
        )
    for value in values.flatten().tolist():
        check_range(value)
    return values.log().to(torch.float32)
