"""A quantizer that is final: a width, and a range that is kept as it is. Nothing learns any more."""

import torch
from torch import Tensor, nn

from bayesbits.functional import gated_quantize
from bayesbits.functional.grid import MIN_BITS, step_size
from bayesbits.nn.gates import Gates
from bayesbits.nn.quantizer import Quantizer, broadcasting


class FinalQuantizer(Quantizer):
    """Rounds to the grid of `bits` in the range that ends at `beta`, or to a part of it that ends at `last_code`.

    It takes the place of another method's quantizer when a network is deployed: `GatedQuantizer` keeps the logarithm of
    a range, and what comes back from there is not exactly a power of two, for one.
    """

    beta_buffer: Tensor

    def __init__(self, beta: Tensor, *, bits: int, signed: bool, last_code: int | None = None) -> None:
        super().__init__(signed=signed, bits=(bits or MIN_BITS,), learn_range=False)
        self._last_code = last_code
        self.gates = Gates(0, open_first=True)
        self.register_buffer("beta_buffer", beta.detach().float().clone())
        self.enter("fixed", bits)

    def _learns(self) -> tuple[tuple[nn.Parameter, bool], ...]:
        return ((self.gates.logits, False),)

    @property
    def beta(self) -> Tensor:
        return self.beta_buffer

    @property
    def last_code(self) -> int | None:
        return self._last_code

    def range_parameters(self) -> list[nn.Parameter]:
        return []

    def forward(self, x: Tensor, stretch: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        if self.mode == "off":
            return x
        beta = self.beta if stretch is None else self.beta * stretch
        gate = beta.new_full((1,), 1.0 if self.fixed_bits else 0.0)
        width = self.fixed_bits or MIN_BITS
        if self.last_code is not None:
            end = self.last_code * step_size(broadcasting(beta, x), width, self.signed)
            x = torch.clamp(x, -end, end)  # an unsigned grid starts at zero
        return gated_quantize(x, beta, gate, signed=self.signed, bits=(width,), dtype=dtype)

    def effective_bits(self) -> int:
        assert self.fixed_bits is not None
        return self.fixed_bits
