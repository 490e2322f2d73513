"""The mathematics of adaptive rounding: codes that are learned between the one below a weight and the one above.

A weight w with step s becomes s clip(floor(w / s) + h(V)) with the rectified sigmoid h(V) = clip(1.2 sigmoid(V) - 0.1,
0, 1), which starts at the weight's own fraction, so that learning starts from the float weight. A regulariser, the sum
of 1 - |2 h(V) - 1|^b, drives every h to 0 or 1; b falls from 20, where only values near 0 or 1 are drawn the rest of
the way, to 2, where all are. (Nagel et al., *Up or Down? Adaptive Rounding for Post-Training Quantization*, 2020.)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesbits.functional.grid import arithmetic_dtype, clip, code_bounds, step_size
from bayesbits.nn.attached import AttachedLayer

ZETA, GAMMA = 1.1, -0.1  # how far the sigmoid is stretched, so that 0 and 1 are reached


def rectified_sigmoid(logits: Tensor) -> Tensor:
    """h(V), between 0 and 1, both included."""
    return torch.clamp(torch.sigmoid(logits) * (ZETA - GAMMA) + GAMMA, 0.0, 1.0)


def logits_of(fraction: Tensor) -> Tensor:
    """V with h(V) equal to a fraction between 0 and 1."""
    return torch.logit((fraction - GAMMA) / (ZETA - GAMMA))


def regulariser(logits: Tensor, exponent: float) -> Tensor:
    """The sum of 1 - |2 h(V) - 1|^exponent: zero when every h is 0 or 1."""
    return (1 - (2 * rectified_sigmoid(logits) - 1).abs().pow(exponent)).sum()


@dataclass(frozen=True)
class RoundingGrid:
    """A layer's folded weight on the grid of its quantizer: the codes below it, and how far above those it lies."""

    below: Tensor
    """floor(w / s) of the clipped weight, as whole numbers."""
    fraction: Tensor
    """w / s - floor(w / s)."""
    step: Tensor
    """s, in a shape that broadcasts."""
    bounds: tuple[int, int]
    """The smallest and the largest code."""
    factor: Tensor | None
    """What the batch norm multiplies the weight with before it is quantized; None without one."""
    original: Tensor
    """The layer's weight."""

    @classmethod
    def of(cls, layer: AttachedLayer) -> "RoundingGrid":
        """The grid of a layer with a quantizer of a final width."""
        quantizer = layer.parts.weight
        assert quantizer is not None
        folded = layer.folded_weight().detach()
        folded = folded.to(arithmetic_dtype(folded.dtype))
        beta = quantizer.beta.detach().to(folded.dtype)
        beta = beta.reshape(-1, *[1] * (folded.dim() - 1)) if quantizer.log_beta.dim() else beta
        bits = quantizer.effective_bits()
        step = step_size(beta, bits, quantizer.signed)
        scaled = clip(folded, beta, quantizer.signed) / step
        below = torch.floor(scaled)
        factor = layer.fold_factor()
        bounds = code_bounds(bits, quantizer.signed)
        return cls(below, scaled - below, step, bounds, factor, layer.weight.detach().to(folded.dtype))

    def codes(self, up: Tensor) -> Tensor:
        """The codes when every one is moved up by this much, from 0 to 1."""
        return torch.clamp(self.below + up, *self.bounds)

    def weight(self, up: Tensor) -> Tensor:
        """The layer's weight with these codes, the factor of the batch norm divided out; as it was where that is 0."""
        quantized = self.codes(up) * self.step
        if self.factor is None:
            return quantized
        dead = self.factor == 0
        return torch.where(dead, self.original, quantized / torch.where(dead, 1.0, self.factor))
