"""WAGE: weights, activations and errors on fixed grids, scaled by powers of two.

S. Wu et al., Training and Inference with Integers in Deep Neural Networks, ICLR 2018. With k bits:

    sigma(k) = 2^(1-k),   Q(x, k) = clip(sigma(k) round(x / sigma(k)), -1 + sigma(k), 1 - sigma(k))
    Shift(x) = 2^round(log2 x)
    weights:      w_q = c Q(w / c, k_W) with a constant c, a power of two
    activations:  a_q = c Q(a / c, k_A)
    errors:       e_q = c Q(e / c, k_E) with c = Shift(max|e|), on their way back through a_q
    d Q / d x = 1 for weights, and for activations 1 between the ends of the grid and 0 beyond them

What is left out: the gradients G and the updates of stored integer weights, which replace the optimizer and keep
weights between -1 and 1; here weights are trained in float by the recipe's optimizer. Where it differs: c is Shift of
the calibrated range of each tensor, where the paper takes it from the initialization of the weights, and activations
have none, as its networks have no batch norm; errors keep their magnitude c, which the paper drops because its update
normalizes it again, and that of the network's output, which has no quantizer, is not rounded; the loss is that of the
recipe, where the paper takes a sum of squares on small images, as grids and constants bound the outputs. Activations
have the signed grid also behind a ReLU, as in the paper.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.methods.method import Method
from bayesbits.methods.quantizer import SMALLEST_SCALE, MethodQuantizer
from bayesbits.nn.quantizer import Ends

ERROR_BITS = 8
"""k_E."""


class WageQuantizer(MethodQuantizer):
    """A grid of 2^(1-k) in [-1, 1], times a constant power of two."""

    scale: Tensor

    def make_parameters(self) -> None:
        self.register_buffer("scale", torch.tensor(1.0))

    def quantize(self, x: Tensor) -> Tensor:
        scale = self.scale.to(x.dtype)
        if not self.of_weight:
            x = _QuantizedError.apply(x)  # type: ignore[no-untyped-call]
            end = scale * (1 - 2.0 ** (1 - self.present_bits))
            x = x.clamp(-end, end)
        return x + (scale * on_grid(x.detach() / scale, self.present_bits) - x).detach()

    @property
    def beta(self) -> Tensor:
        """The end of the range whose step is c sigma(k)."""
        return self.scale * (2.0 ** (1 - self.present_bits) * self.levels())

    def range_parameters(self) -> list[nn.Parameter]:
        return []

    def _set_range(self, kind: str, beta: Ends, alpha: Ends | None) -> None:
        super()._set_range("symmetric" if kind == "unsigned" else kind, beta, alpha)

    def put_range(self, beta: float) -> None:
        self.scale.fill_(2.0 ** round(math.log2(beta)))


def on_grid(x: Tensor, bits: int) -> Tensor:
    """Q(x, k)."""
    sigma = 2.0 ** (1 - bits)
    return (torch.round(x / sigma) * sigma).clamp(-1 + sigma, 1 - sigma)


def quantized_error(error: Tensor) -> Tensor:
    """c Q(e / c, k_E) with c = Shift(max|e|)."""
    if error.numel() == 0:
        return error
    largest = error.abs().amax().float().clamp_min(SMALLEST_SCALE)
    shift = torch.exp2(torch.round(torch.log2(largest))).to(error.dtype)
    return shift * on_grid(error / shift, ERROR_BITS)


class _QuantizedError(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, error: Tensor) -> Tensor:
        return quantized_error(error)


METHOD = Method(
    name="wage",
    title="WAGE",
    paper="Wu et al., Training and Inference with Integers in Deep Neural Networks, ICLR 2018",
    weights=WageQuantizer,
    activations=WageQuantizer,
    widths=(2, 8),
)
