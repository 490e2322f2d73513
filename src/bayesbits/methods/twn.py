"""TWN: ternary weights by a threshold and a scale that follow from the weights.

F. Li and B. Liu, Ternary Weight Networks, 2016. For a weight W of n numbers:

    Delta = 0.7 / n sum|w_i|
    w_t = +1 where w > Delta, -1 where w < -Delta, 0 otherwise
    alpha = mean|w_i| over those with |w_i| > Delta
    the layer multiplies with alpha w_t; the gradient for alpha w_t is that of w

Activations stay in float, as in the paper; with `Spec.activation_bits` they have the quantizers of Bayesian Bits at a
fixed width, and so has the weight of a layer that a rule or `Spec.edge_bits` gives another width. Without these the
first and the last layer are ternary too. There is nothing to learn but the weights.
"""

import torch
from torch import Tensor, nn

from bayesbits.functional.grid import arithmetic_dtype
from bayesbits.methods.method import Method
from bayesbits.methods.quantizer import SMALLEST_SCALE, MethodQuantizer

THRESHOLD = 0.7


class TwnQuantizer(MethodQuantizer):
    """Ternary weights; `alpha_buffer` is the scale of the weights that it has seen last, and `threshold` theirs."""

    only_bits = 2
    rounds_to_nearest = False

    alpha_buffer: Tensor
    threshold: Tensor

    def make_parameters(self) -> None:
        self.register_buffer("alpha_buffer", torch.tensor(1.0))
        self.register_buffer("threshold", torch.tensor(0.0), persistent=False)

    @torch.no_grad()
    def follow(self, x: Tensor) -> None:
        if x.numel() > 0:
            values = x.to(arithmetic_dtype(x.dtype))
            self.alpha_buffer.copy_(scale_and_signs(values)[0])
            self.threshold.copy_(threshold_of(values))

    def quantize(self, x: Tensor) -> Tensor:
        ternary = x.detach().sign() * (x.detach().abs() > self.threshold)
        return x + (self.alpha_buffer.to(x.dtype, copy=True) * ternary - x).detach()

    @property
    def beta(self) -> Tensor:
        """The end of the range whose step is alpha."""
        return self.alpha_buffer * self.levels()

    def range_parameters(self) -> list[nn.Parameter]:
        return []

    def put_range(self, beta: float) -> None:
        self.alpha_buffer.fill_(beta / self.levels())


def threshold_of(weight: Tensor) -> Tensor:
    """Delta."""
    return THRESHOLD * weight.abs().mean()


def scale_and_signs(weight: Tensor) -> tuple[Tensor, Tensor]:
    """alpha, and the weights as -1, 0 and 1."""
    magnitude = weight.abs()
    large = magnitude > threshold_of(weight)
    scale = (magnitude * large).sum() / large.sum().clamp_min(1)
    return scale.clamp_min(SMALLEST_SCALE), weight.sign() * large


METHOD = Method(
    name="twn",
    title="TWN",
    paper="Li and Liu, Ternary Weight Networks, 2016",
    weights=TwnQuantizer,
    widths=(2, 32),
)
