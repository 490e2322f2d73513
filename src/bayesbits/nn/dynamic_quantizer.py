"""A quantizer of activations without a range of its own: every tensor is quantized by the range that it has itself.

The width is 8 bits, and codes are those of ONNX's DynamicQuantizeLinear (see `functional.dynamic`). The range is that
of the whole tensor, so that an example's codes depend on the batch that it is in, when it is trained and when it is
deployed. Nothing is learned or calibrated, nothing is clipped, and gradients pass straight through.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesbits.functional.dynamic import DYNAMIC_BITS, dynamic_codes, dynamic_ends, dynamic_grid
from bayesbits.nn.gates import Gates
from bayesbits.nn.quantizer import Ends, Quantizer

FLOAT = 32
"""The width of a plan that leaves the tensor in float."""


class DynamicQuantizer(Quantizer):
    """Quantizes each tensor to 8 bits by its own range; `range_of` says which one that is."""

    dynamic: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__(signed=True, bits=(DYNAMIC_BITS,), learn_range=False, asymmetric=True)
        self.gates = Gates(0, open_first=True)
        self.enter("fixed", DYNAMIC_BITS)

    def _learns(self) -> tuple[tuple[nn.Parameter, bool], ...]:
        return ((self.gates.logits, False),)

    def range_of(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The upper and the lower end of the range of x, zero included."""
        low, high = dynamic_ends(x)
        return high, low

    @property
    def may_be_asymmetric(self) -> bool:
        return True

    @property
    def range_shape(self) -> torch.Size:
        """Empty: there is no range to keep."""
        return torch.Size([0])

    def range_parameters(self) -> list[nn.Parameter]:
        return []

    def set_kind(self, kind: str) -> None:
        """Nothing to do: every tensor has the range that it has."""

    def _set_range(self, kind: str, beta: Ends, alpha: Ends | None) -> None:
        raise ValueError("an activation that is quantized at run time has no range that could be set")

    def forward(self, x: Tensor, stretch: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """x on the grid of its own range, in its own or another dtype; `stretch` is for weights alone."""
        dtype = x.dtype if dtype is None else dtype
        if self.mode == "off" or x.numel() == 0:
            return x.to(dtype)
        with torch.no_grad():
            step, zero_point = dynamic_grid(*dynamic_ends(x))
            numbers = dynamic_codes(x, step, zero_point) * step
        return numbers.to(dtype) + (x - x.detach()).to(dtype)  # the second part is zero, with a gradient of one

    def codes(self, x: Tensor, stretch: Tensor | None = None) -> Tensor:
        """The integer codes of x, by its own range."""
        return dynamic_codes(x.detach(), *dynamic_grid(*dynamic_ends(x))).int()

    def effective_bits(self) -> int:
        return DYNAMIC_BITS

    def check_width(self, bits: int, name: str = "an activation") -> None:
        if bits not in (DYNAMIC_BITS, FLOAT):
            raise ValueError(
                f"{name} is quantized at run time, by Spec(activations='dynamic'), to {DYNAMIC_BITS} bits, and cannot "
                f"have {bits}: give it {DYNAMIC_BITS} bits, or {FLOAT} to leave it in float"
            )

    def fix(self, bits: int | None = None) -> None:
        """Make 8 bits final, or with 32 leave the tensor in float."""
        bits = DYNAMIC_BITS if bits is None else bits
        self.check_width(bits)
        self.enter(*(("off", None) if bits == FLOAT else ("fixed", bits)))

    def learn(self) -> None:
        """There is no width to decide: 8 bits."""
        self.fix(DYNAMIC_BITS)

    def check_range(self, name: str = "a quantizer") -> None:
        """Every tensor has a usable range."""

    def extra_repr(self) -> str:
        return "off" if self.mode == "off" else f"{DYNAMIC_BITS} bits by the range of each tensor"
