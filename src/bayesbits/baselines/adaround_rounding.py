"""The mathematics of AdaRound and its options: for every weight, the choice between the code below and the code above.

A weight w with step s becomes s clip(floor(w / s) + h(V)) with the rectified sigmoid h(V) = clip(1.2 sigmoid(V) - 0.1,
0, 1). V starts where h(V) is the fraction of w / s, so that learning starts from the float weight. A regularizer, the
sum of 1 - |2 h(V) - 1|^b, drives every h to 0 or 1. Its exponent b falls from 20, where it acts only on values near 0
or 1, to 2, where it acts on all. (Nagel et al., *Up or Down? Adaptive Rounding for Post-Training Quantization*, 2020.)

The paper leaves s and the bias as they are. Here they learn, too. With floor(w / s) from the first s, the codes stay
what they are, and a step that is a little larger or smaller makes the whole channel so, where its rounded weights have
lost or gained; the bias takes away what rounding has added to the channel's mean.
"""

import math
from collections.abc import Callable
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
    """The options of `adaround`. The defaults are those of the paper, except for `steps` and `strength`, and
    that ranges and biases learn, too.

    Args:
        steps: The number of steps for each layer. The paper takes 10,000.
        batch_size: The number of examples in a step.
        lr: The learning rate of Adam.
        range_lr: The learning rate of the logarithms of the weights' ranges; 0 leaves them as they are, as the paper
            does.
        bias_lr: The learning rate of the bias that is deployed, the layer's or that of its batch norm, in standard
            deviations of the output channel; 0 leaves it as it is, as the paper does.
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
    range_lr: float = 1e-3
    """The learning rate of the logarithms of the weights' ranges; 0 leaves them as they are, as the paper does."""
    bias_lr: float = 1e-3
    """The learning rate of the bias, in standard deviations of the output channel; 0 leaves it, as the paper does."""
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
        for name in ("range_lr", "bias_lr", "strength"):
            check_number(self, name, 0.0)
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
    """A weight from its logits and step, s clip(floor(w / s) + h(V)), with the weighted regularizer's gradient added.

    With u = sigmoid(V), h' = 1.2 u (1 - u) where h lies between 0 and 1 and else 0, and r = 2 h - 1:

        dV = (g s [the code is not clipped] - strength * 2 b |r|^(b - 1) sign(r)) h'
        ds = the sum of g clip(floor(w / s) + h(V)) over the weights of the step

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
        """The gradients of the logits and of the step."""
        sigmoid, below, step, strength, exponent = ctx.saved_tensors
        stretched = _stretched(sigmoid)
        up = stretched.clamp(0.0, 1.0)  # h
        of_step = None
        if ctx.needs_input_grad[2]:
            of_step = up.add(below).clamp_(*ctx.bounds).mul_(gradient).sum_to_size(step.shape)
        middle = up.mul_(2.0).sub_(1.0)  # r
        result = where_between(gradient * step, below, -math.inf, ctx.bounds[1])
        result -= middle.abs().pow_(exponent - 1).mul_(middle.sign_()).mul_(2 * strength * exponent)
        result *= (1 - sigmoid).mul_(sigmoid).mul_(ZETA - GAMMA)
        finite = torch.finfo(stretched.dtype)  # at 0 and at 1 themselves h follows its logit
        return where_between(result, stretched, -finite.tiny, 1 + finite.eps), None, of_step, None, None, None


def where_between(gradient: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    """A gradient where x lies between two numbers, and zero elsewhere: in one pass, where a product with a mask of
    comparisons takes ten times as long."""
    result: Tensor = torch.ops.aten.hardtanh_backward(gradient, x, low, high)
    return result


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


def learned_step(grid: RoundingGrid, layer: AttachedLayer) -> Callable[[], Tensor]:
    """The step of a layer's grid as a function of the range of its quantizer, which is about to learn."""
    quantizer = layer.parts.weight
    assert quantizer is not None
    first = quantizer.beta.detach().clone()
    return lambda: grid.step * layer.along_ranges(quantizer.beta / first)


def soft_weight(
    grid: RoundingGrid, logits: Tensor, strength: Tensor, exponent: Tensor, step: Tensor | None = None
) -> Tensor:
    """The softly rounded weight; its gradient has that of `strength * regularizer(logits, exponent)` added.

    `step` takes the place of the grid's own.
    """
    step = grid.step if step is None else step
    weight: Tensor = SoftRounding.apply(logits, grid.below, step, grid.bounds, strength, exponent)  # type: ignore[no-untyped-call]
    return weight
