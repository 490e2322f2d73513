"""What every quantizer is, ours or another method's: a mode, a width, a range, and the codes that follow from them.

The rest of the package knows this class alone. `nn.gated_quantizer` is the one of Bayesian Bits; `methods` has those of
the methods that it is compared with.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesbits.functional import code_bounds, quantize_to_codes, step_size
from bayesbits.functional.grid import MIN_BITS, check_bits
from bayesbits.functional.operation import check_range
from bayesbits.nn.gates import Gates

_MODES = ("learning", "fixed", "off")
KINDS = ("unsigned", "symmetric", "asymmetric")
"""The kinds of ranges; the state has their positions."""
Ends = float | Sequence[float] | Tensor
"""An end of a range, or one for each index of axis 0."""


class Quantizer(nn.Module):
    """Quantizes a tensor.

    `mode` is "learning" (the width is being decided), "fixed" (a given width; the range still learns) or "off" (the
    identity). `bits` are the widths to decide between. Without `learn_range` the range stays where it is put.
    """

    samples_outputs: ClassVar[bool] = False
    """Whether a layer with this quantizer on its weight draws its outputs in training (see `methods.lrnet`)."""
    needs_sample: ClassVar[bool] = False
    """Whether `start` sets the range from a sample of the values."""
    not_deployable: ClassVar[str] = ""
    """Why a tensor of this quantizer cannot be deployed; empty where it can."""
    rounds_to_nearest: ClassVar[bool] = True
    """Whether evaluation emits the nearest code; other weights are written before they are deployed."""
    dynamic: ClassVar[bool] = False
    """Whether every tensor is quantized by its own range, at run time (see `nn.dynamic_quantizer`)."""

    gates: Gates
    """The gates between the widths; without any where the width is not decided by gates."""

    def __init__(self, *, signed: bool, bits: Sequence[int], learn_range: bool, asymmetric: bool = False) -> None:
        super().__init__()
        check_bits(tuple(bits))
        self.signed, self.asymmetric, self.learn_range = signed or asymmetric, asymmetric, learn_range
        self.bits = tuple(bits)
        self.mode = "off"
        self.fixed_bits: int | None = None

    def enter(self, mode: str, fixed_bits: int | None) -> None:
        """Go into a mode. Parameters that do not learn in it require no gradient, as parallel training waits for those.

        A parameter that could learn in the mode before, and was frozen by `requires_grad_(False)`, stays frozen.
        """
        frozen = [learns and not parameter.requires_grad for parameter, learns in self._learns()]
        self.mode, self.fixed_bits = mode, fixed_bits
        for (parameter, learns), stays in zip(self._learns(), frozen, strict=True):
            parameter.requires_grad_(learns and not stays)

    def _learns(self) -> tuple[tuple[nn.Parameter, bool], ...]:
        """All parameters, and whether the mode lets them learn."""
        raise NotImplementedError

    @property
    def beta(self) -> Tensor:
        """The end of the range at the effective bits: positive, one number or one for each index of axis 0."""
        raise NotImplementedError

    @property
    def alpha(self) -> Tensor | None:
        """The lower end of an asymmetric range, below zero; None where the range is symmetric or unsigned."""
        return None

    def range_of(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Beta and alpha as x is quantized with them, detached; the same for every x but where `dynamic`."""
        return self.beta.detach(), None if self.alpha is None else self.alpha.detach()

    @property
    def may_be_asymmetric(self) -> bool:
        """Whether the range may have a second end."""
        return False

    @property
    def range_shape(self) -> torch.Size:
        """The shape of the range: empty, or the number of indices of axis 0."""
        return self.beta.shape

    def width_parameters(self) -> list[nn.Parameter]:
        """The parameters that decide the width; an optimizer has them in the group "gates"."""
        return []

    def range_parameters(self) -> list[nn.Parameter]:
        """The other parameters, those of the present range."""
        raise NotImplementedError

    def learned_range_parameters(self) -> list[nn.Parameter]:
        """Those of them that learn where the range does; an optimizer has them in the group "ranges"."""
        return self.range_parameters()

    def possible_range_parameters(self) -> list[nn.Parameter]:
        """The parameters of the range that learn, or that may after another calibration."""
        return [parameter for parameter in self.range_parameters() if parameter.requires_grad]

    def set_range(self, beta: Ends, *, signed: bool | None = None, alpha: Ends | None = None) -> None:
        """Set the end of the range, and the sign where one is given; with `alpha` the range becomes asymmetric."""
        symmetric = self.signed if signed is None else signed
        kind = "asymmetric" if alpha is not None else "symmetric" if symmetric else "unsigned"
        self._set_range(kind, beta, alpha)

    def _set_range(self, kind: str, beta: Ends, alpha: Ends | None) -> None:
        """Set the range to one of `KINDS`, with these ends."""
        raise NotImplementedError

    def start(self, sample: Tensor) -> None:
        """Set the range by the method's own initialization, from a sample of the values; after `set_range`."""

    @property
    def kind(self) -> str:
        """Which of `KINDS` the range is."""
        return KINDS[self.signed + self.asymmetric]

    def set_kind(self, kind: str) -> None:
        """Make the range one of another kind, with the ends that it has."""
        if kind == "asymmetric" and not self.may_be_asymmetric:
            raise ValueError(
                "a range with two ends was given to a quantizer that is symmetric or unsigned: attach with "
                "Spec(asymmetric_activations=True), or use ranges that were made without it"
            )
        self.signed, self.asymmetric = kind != "unsigned", kind == "asymmetric"

    def follow(self, x: Tensor) -> None:
        """Take from a whole tensor what the range follows; before the range is used, and nothing for most methods."""

    @property
    def holds_weight(self) -> bool:
        """Whether its parameters are the weight, as it is stored, and that of the layer learns no more.

        It is then called with the weight as it is stored, and a stretch that broadcasts against it.
        """
        return False

    def forward(self, x: Tensor, stretch: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """x quantized, in its own or another dtype; `stretch` multiplies the range of each index of axis 0."""
        raise NotImplementedError

    def variance(self, stretch: Tensor | None = None) -> Tensor:
        """The variance of a random weight, where `samples_outputs`."""
        raise NotImplementedError

    def effective_bits(self) -> int:
        """The number of bits by the test-time decision; 0 where the whole tensor is switched off."""
        raise NotImplementedError

    def step(self) -> Tensor:
        """The distance between two neighboring codes at the effective bits."""
        return step_size(self.beta, self.effective_bits() or MIN_BITS, self.signed, self.alpha)

    @property
    def last_code(self) -> int | None:
        """The largest code of a method that may use a part of the grid of a width; None where all of it is used."""
        return None

    @property
    def is_plain(self) -> bool:
        """Whether evaluation rounds to the nearest code of the whole grid of the width."""
        return self.rounds_to_nearest and self.last_code is None

    def code_bounds(self) -> tuple[int, int]:
        """The smallest and the largest code at the effective bits."""
        bits, alpha, last = self.effective_bits(), self.alpha, self.last_code
        if last is not None:
            return (-last if self.signed else 0), last
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
        return codes * (width > 0) if self.last_code is None else codes.clamp(*self.code_bounds())

    def check_width(self, bits: int, name: str = "a quantizer") -> None:
        """Raise where a plan must not give the tensor this width; any is allowed unless a subclass says otherwise."""

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
            for value in self.beta.detach().double().flatten().tolist():
                check_range(value)
            if self.alpha is not None:
                check_range(-self.alpha.detach().double().item())
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    def learn(self) -> None:
        """Decide the width (again)."""
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

    def extra_repr(self) -> str:
        beta = self.beta.detach()
        span = f"{beta.item():.4g}" if beta.numel() == 1 else f"{beta.numel()} x ({beta.min():.4g} to {beta.max():.4g})"
        decision = "off" if self.mode == "off" else f"{self.mode} {self.effective_bits()} bits"
        decision += "" if self.last_code is None else f" to code {self.last_code}"
        if self.alpha is not None:
            return f"{decision} of {self.bits}, asymmetric, alpha={self.alpha.item():.4g}, beta={span}"
        return f"{decision} of {self.bits}, {'signed' if self.signed else 'unsigned'}, beta={span}"


def broadcasting(stretch: Tensor, x: Tensor) -> Tensor:
    """One number for each index of axis 0, in a shape that broadcasts against x; others have it already."""
    return stretch.reshape(-1, *[1] * (x.dim() - 1)) if stretch.dim() == 1 else stretch
