"""The mathematics of adaptive rounding: codes that are learned between the one below a weight and the one above.

A weight w with step s becomes s clip(floor(w / s) + h(V)) with the rectified sigmoid h(V) = clip(1.2 sigmoid(V) - 0.1,
0, 1), which starts at the weight's own fraction, so that learning starts from the float weight. A regularizer, the sum
of 1 - |2 h(V) - 1|^b, drives every h to 0 or 1; b falls from 20, where only values near 0 or 1 are drawn the rest of
the way, to 2, where all are. (Nagel et al., *Up or Down? Adaptive Rounding for Post-Training Quantization*, 2020.)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesbits.functional.grid import arithmetic_dtype, clip, code_bounds, step_size
from bayesbits.nn.layer import AttachedLayer

ZETA, GAMMA = 1.1, -0.1  # how far the sigmoid is stretched, so that 0 and 1 are reached


def rectified_sigmoid(logits: Tensor) -> Tensor:
    """h(V), between 0 and 1, both included."""
    return torch.clamp(torch.sigmoid(logits) * (ZETA - GAMMA) + GAMMA, 0.0, 1.0)


def logits_of(fraction: Tensor) -> Tensor:
    """V with h(V) equal to a fraction between 0 and 1."""
    return torch.logit((fraction - GAMMA) / (ZETA - GAMMA))


def regularizer(logits: Tensor, exponent: float | Tensor) -> Tensor:
    """The sum of 1 - |2 h(V) - 1|^exponent: zero when every h is 0 or 1."""
    return (1 - (2 * rectified_sigmoid(logits) - 1).abs().pow(exponent)).sum()


@dataclass(frozen=True)
class RoundingGrid:
    """A layer's weight on the grid of its quantizer: the codes below it, and how far above those it lies.

    Where a batch norm is folded the grid of every channel is stretched, as in `nn.layer`.
    """

    below: Tensor
    """floor(w / s) of the clipped weight, as whole numbers."""
    fraction: Tensor
    """w / s - floor(w / s)."""
    step: Tensor
    """s, in a shape that broadcasts."""
    bounds: tuple[int, int]
    """The smallest and the largest code."""

    @classmethod
    def of(cls, layer: AttachedLayer) -> "RoundingGrid":
        """The grid of a layer with a quantizer of a final width."""
        quantizer, factor = layer.parts.weight, layer.fold_factor()
        assert quantizer is not None
        weight = layer.weight.detach().to(arithmetic_dtype(layer.weight.dtype))
        beta = quantizer.beta.detach()
        if factor is not None:
            beta = beta * torch.where(factor == 0, 1.0, factor.abs()).reciprocal()
        beta = (layer.along_outputs(beta) if beta.dim() else beta).to(weight.dtype)
        bits = quantizer.effective_bits()
        step = step_size(beta, bits, quantizer.signed)
        scaled = clip(weight, beta, quantizer.signed) / step
        below = torch.floor(scaled)
        return cls(below, scaled - below, step, code_bounds(bits, quantizer.signed))

    def codes(self, up: Tensor) -> Tensor:
        """The codes when every one is moved up by this much, from 0 to 1."""
        return torch.clamp(self.below + up, *self.bounds)

    def weight(self, up: Tensor) -> Tensor:
        """The layer's weight with these codes."""
        return self.codes(up) * self.step
