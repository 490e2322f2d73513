"""The mathematics of AdaRound and its options: for every weight, the choice between the code below and the code above.

A weight w with step s becomes s clip(floor(w / s) + h(V)) with the rectified sigmoid h(V) = clip(1.2 sigmoid(V) - 0.1,
0, 1). V starts where h(V) is the fraction of w / s, so that learning starts from the float weight. A regularizer, the
sum of 1 - |2 h(V) - 1|^b, drives every h to 0 or 1. Its exponent b falls from 20, where it acts only on values near 0
or 1, to 2, where it acts on all. (Nagel et al., *Up or Down? Adaptive Rounding for Post-Training Quantization*, 2020.)
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesbits.functional.grid import arithmetic_dtype, clip, code_bounds, step_size
from bayesbits.nn.layer import AttachedLayer
from bayesbits.utils.checks import check_flag, check_integer, check_number, check_positive, is_number

ZETA, GAMMA = 1.1, -0.1  # the sigmoid is stretched to this interval, so that 0 and 1 are reached


@dataclass(frozen=True)
class AdaRoundConfig:
    """The options of `adaround`. The defaults are those of the paper, except for `steps` and `strength`.

    Args:
        steps: The number of steps for each layer. The paper takes 10,000.
        batch_size: The number of examples in a step.
        lr: The learning rate of Adam.
        strength: The weight of the regularizer, as a multiple of the curvature of the squared error, channel by
            channel. The paper's regularizer has the same weight everywhere.
        warm_up: The part of the steps, at the beginning, without the regularizer.
        exponents: The exponent of the regularizer after the warm-up and at the end; it falls linearly.
        after_activation: Whether the error is measured after the activation function (such as ReLU) that follows the
            layer, or directly at the layer's output.
        asymmetric: Whether a layer reads the outputs of the quantized layers before it, as in the final network, or
            those of the float network.
        max_gibibytes: The largest size of one layer's inputs and outputs that is held. Of more data, every n-th example
            is used.
        seed: The seed of the choice of examples.

    Raises:
        ValueError: If an option has the wrong type or is out of its range.

    Example::

        >>> from bayesbits.baselines import AdaRoundConfig
        >>> AdaRoundConfig(steps=100).regularization(step=0)
        (0.0, 20.0)
    """

    steps: int = 2000
    """The number of steps for each layer; the paper takes 10,000."""
    batch_size: int = 32
    """The number of examples in a step."""
    lr: float = 1e-2
    """The learning rate of Adam."""
    strength: float = 30.0
    """The weight of the regularizer, as a multiple of the curvature of the squared error, channel by channel."""
    warm_up: float = 0.2
    """The part of the steps, at the beginning, without the regularizer."""
    exponents: tuple[float, float] = (20.0, 2.0)
    """The exponent of the regularizer after the warm-up and at the end; it falls linearly."""
    after_activation: bool = True
    """Whether the error is measured after the activation function that follows the layer, or at the layer's output."""
    asymmetric: bool = True
    """Whether a layer reads the outputs of the quantized layers before it, or those of the float network."""
    max_gibibytes: float = 2.0
    """The largest size of one layer's inputs and outputs that is held; of more data, every n-th example is used."""
    seed: int = 0
    """The seed of the choice of examples."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size"):
            check_integer(self, name, 1)
        for name in ("lr", "max_gibibytes"):
            check_positive(self, name)
        for name in ("after_activation", "asymmetric"):
            check_flag(self, name)
        check_number(self, "strength", 0.0)
        if not is_number(self.warm_up) or not 0 <= self.warm_up < 1:
            raise ValueError(f"AdaRoundConfig.warm_up is {self.warm_up!r}; it is a part, from 0 up to and without 1")
        if len(self.exponents) != 2 or not self.exponents[0] >= self.exponents[1] > 0:
            raise ValueError(f"AdaRoundConfig.exponents is {self.exponents!r}; it is two numbers above 0 that fall")

    def regularization(self, step: int) -> tuple[float, float]:
        """The weight of the regularizer and its exponent at a step."""
        start = self.warm_up * self.steps
        first, last = self.exponents
        if step < start:
            return 0.0, first
        return self.strength, first + (last - first) * (step - start) / max(1.0, self.steps - 1 - start)


def rectified_sigmoid(logits: Tensor) -> Tensor:
    """h(V), from 0 to 1, both included."""
    return torch.clamp(torch.sigmoid(logits) * (ZETA - GAMMA) + GAMMA, 0.0, 1.0)


def logits_of(fraction: Tensor) -> Tensor:
    """The V for which h(V) equals a fraction between 0 and 1."""
    return torch.logit((fraction - GAMMA) / (ZETA - GAMMA))


def regularizer(logits: Tensor, exponent: float | Tensor) -> Tensor:
    """The sum of 1 - |2 h(V) - 1|^exponent: zero when every h is 0 or 1."""
    return (1 - (2 * rectified_sigmoid(logits) - 1).abs().pow(exponent)).sum()


class SoftRounding(torch.autograd.Function):
    """A weight from its logits, s clip(floor(w / s) + h(V)); its gradient has that of the weighted regularizer added.

    With u = sigmoid(V), h' = 1.2 u (1 - u) where h lies between 0 and 1 and else 0, and r = 2 h - 1:

        dV = (g s [the code is not clipped] - strength * 2 b |r|^(b - 1) sign(r)) h'

    One operation in the place of about thirty, most of which would keep a copy of the weight.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, below: Tensor, step: Tensor, bounds: tuple[int, int], strength: Tensor,
        exponent: Tensor,
    ) -> Tensor:  # fmt: skip
        """The weight."""
        sigmoid = torch.sigmoid(logits)
        ctx.save_for_backward(sigmoid, below, step, strength, exponent)
        ctx.bounds = bounds
        return _stretched(sigmoid).clamp_(0.0, 1.0).add_(below).clamp_(*bounds).mul_(step)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """The gradient of the logits."""
        sigmoid, below, step, strength, exponent = ctx.saved_tensors
        stretched = _stretched(sigmoid)
        inside = (stretched >= 0) & (stretched <= 1)
        middle = stretched.clamp_(0.0, 1.0).mul_(2.0).sub_(1.0)  # r
        result = gradient * step * (below < ctx.bounds[1])
        result -= middle.abs().pow_(exponent - 1).mul_(middle.sign_()).mul_(2 * strength * exponent)
        result *= sigmoid * (1 - sigmoid) * (ZETA - GAMMA)
        return result.mul_(inside), None, None, None, None, None


def _stretched(sigmoid: Tensor) -> Tensor:
    return sigmoid.mul(ZETA - GAMMA).add_(GAMMA)


@dataclass(frozen=True)
class RoundingGrid:
    """A layer's weight on the grid of its quantizer: the codes below the weights, and the fractions above these.

    Where a batch norm is folded, the grid of every channel is stretched, as in `nn.layer`.
    """

    below: Tensor
    """floor(w / s) of the clipped weight, as whole numbers."""
    fraction: Tensor
    """w / s - floor(w / s)."""
    step: Tensor
    """s, in a shape that broadcasts against the weight."""
    bounds: tuple[int, int]
    """The smallest and the largest code."""

    @classmethod
    def of(cls, layer: AttachedLayer) -> "RoundingGrid":
        """The grid of a layer whose quantizer has a final width."""
        quantizer, (_, stretch) = layer.parts.weight, layer.for_rounding(layer.weight)
        assert quantizer is not None
        weight = layer.weight.detach().to(arithmetic_dtype(layer.weight.dtype))
        beta = quantizer.beta.detach()
        beta = beta if stretch is None else beta * stretch
        beta = layer.along_ranges(beta).to(weight.dtype)
        bits = quantizer.effective_bits()
        step = step_size(beta, bits, quantizer.signed)
        scaled = clip(weight, beta, quantizer.signed) / step
        below = torch.floor(scaled)
        return cls(below, scaled - below, step, code_bounds(bits, quantizer.signed))

    def first_logits(self) -> Tensor:
        """The V with which the weight is the float one, clipped."""
        return logits_of(self.fraction)

    def codes(self, up: Tensor) -> Tensor:
        """The codes below, each moved up by a number from 0 to 1, and clipped."""
        return torch.clamp(self.below + up, *self.bounds)

    def weight(self, up: Tensor) -> Tensor:
        """The layer's weight with these codes."""
        return self.codes(up) * self.step


def soft_weight(grid: RoundingGrid, logits: Tensor, strength: Tensor, exponent: Tensor) -> Tensor:
    """The softly rounded weight; its gradient has that of `strength * regularizer(logits, exponent)` added."""
    weight: Tensor = SoftRounding.apply(logits, grid.below, grid.step, grid.bounds, strength, exponent)  # type: ignore[no-untyped-call]
    return weight
