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

from bayesbits.functional import gated_quantize
from bayesbits.functional.grid import MIN_BITS
from bayesbits.functional.operation import check_range
from bayesbits.nn.gates import Gates
from bayesbits.nn.quantizer import Ends, Quantizer

_LARGEST_LOGARITHM = 60.0  # ranges from 1e-26 to 1e26, which float32 can divide into steps


class GatedQuantizer(Quantizer):
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
        super().__init__(signed=signed, bits=bits, learn_range=learn_range, asymmetric=asymmetric)
        self.gates = Gates(len(self.bits) - (not zero), kind=gates, open_first=not zero)
        self.log_beta = nn.Parameter(_checked_logarithm(beta))
        if asymmetric and self.log_beta.dim():
            raise ValueError("a quantizer with a range for each index of axis 0 cannot be asymmetric")
        self.log_alpha = nn.Parameter(self.log_beta.detach().clone()) if asymmetric else None
        self.enter("learning", None)

    def _learns(self) -> tuple[tuple[nn.Parameter, bool], ...]:
        """Logits and ends of the range, and whether the mode lets them learn."""
        logits = self.gates.logits
        learns = self.mode != "off" and self.learn_range
        ends = () if self.log_alpha is None else ((self.log_alpha, learns and self.asymmetric),)
        return ((logits, self.mode == "learning" and logits.numel() > 0), (self.log_beta, learns), *ends)

    @property
    def beta(self) -> Tensor:
        """The end of the range; positive and finite for any value of its logarithm, which is the parameter."""
        return self._learned_beta()

    def _learned_beta(self) -> Tensor:
        """The end of the range as it learns; a method, as `torch.compile` cannot call a property of a parent class."""
        return _exponential(self.log_beta)

    @property
    def alpha(self) -> Tensor | None:
        """The lower end of an asymmetric range, below zero; None where the range is symmetric or unsigned."""
        if not self.asymmetric:
            return None
        assert self.log_alpha is not None
        return -_exponential(self.log_alpha)

    @property
    def may_be_asymmetric(self) -> bool:
        return self.log_alpha is not None

    @property
    def range_shape(self) -> torch.Size:
        return self.log_beta.shape

    def width_parameters(self) -> list[nn.Parameter]:
        """The logits of the gates."""
        return [self.gates.logits]

    def possible_range_parameters(self) -> list[nn.Parameter]:
        """The ends that learn, and a lower end that does as soon as a calibration makes the range asymmetric."""
        upper = [self.log_beta] if self.log_beta.requires_grad else []
        if self.log_alpha is None:
            return upper
        return upper + [self.log_alpha] * (self.log_alpha if self.asymmetric else self.log_beta).requires_grad

    def range_parameters(self) -> list[nn.Parameter]:
        """The parameters of the present range: the logarithm of beta, and of -alpha where the range is asymmetric."""
        return [self.log_beta] if self.log_alpha is None or not self.asymmetric else [self.log_beta, self.log_alpha]

    def _set_range(self, kind: str, beta: Ends, alpha: Ends | None) -> None:
        upper = _checked_logarithm(beta)
        lower = None if alpha is None else _checked_logarithm(-torch.as_tensor(alpha, dtype=torch.float64))
        self.set_kind(kind)
        with torch.no_grad():
            self.log_beta.copy_(upper)
            if lower is not None:
                assert self.log_alpha is not None
                self.log_alpha.copy_(lower)

    def set_kind(self, kind: str) -> None:
        """Make the range one of another kind, with the ends that it has; a new end learns where the other one does."""
        super().set_kind(kind)
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

    def _load_from_state_dict(
        self, state: Any, prefix: str, metadata: Any, strict: bool, missing: list[str], unexpected: list[str],
        errors: list[str],
    ) -> None:  # fmt: skip
        """A state without a second end, as quantizers had it that cannot be asymmetric, has no use for one."""
        super()._load_from_state_dict(state, prefix, metadata, strict, missing, unexpected, errors)
        key = f"{prefix}log_alpha"
        if key in missing and f"{prefix}log_beta" in state and not self.asymmetric:
            missing.remove(key)


class KnownRangeQuantizer(GatedQuantizer):
    """A quantizer whose range is known without data, as that of the output of softmax, and stays where it is."""

    def _set_range(self, kind: str, beta: Ends, alpha: Ends | None) -> None:
        """Keep the range, whatever values were seen."""


def _exponential(logarithm: Tensor) -> Tensor:
    return logarithm.float().clamp(-_LARGEST_LOGARITHM, _LARGEST_LOGARITHM).exp()


def _checked_logarithm(beta: Ends) -> Tensor:
    values = torch.as_tensor(beta, dtype=torch.float64)
    if values.dim() > 1 or values.numel() == 0:
        raise ValueError(
            f"beta must be a number or a vector with one for each index of axis 0, got shape {values.shape}"
        )
    for value in values.flatten().tolist():
        check_range(value)
    return values.log().to(torch.float32)
