"""LR-Net: weights are random, ternary or binary, and layers draw their outputs instead of their weights.

O. Shayer, D. Levi and E. Fetaya, Learning Discrete Weights Using the Local Reparameterization Trick, ICLR 2018. Every
weight has P(w = 0) = S(a) and P(w = 1 | w is not 0) = S(b), with the logistic function S; a binary one has P(w = 1) =
S(b) alone. By the central limit theorem the output of a layer is nearly normal:

    m = sum_j E[w_j] x_j,   v = sum_j Var[w_j] x_j^2,   y = m + sqrt(v) eps,  eps ~ N(0, 1)
    ternary:  E[w] = (1 - S(a)) (2 S(b) - 1),   Var[w] = (1 - S(a)) - E[w]^2
    binary:   E[w] = 2 S(b) - 1,                Var[w] = 1 - E[w]^2
    start, from a trained weight over its deviation, w~:  P(w = 0) = 0.95 - 0.9 |w~|,
           P(w = 1 | not 0) = (1 + w~ / (1 - P(w = 0))) / 2, all of them kept between 0.05 and 0.95
    binary:   the loss has lambda sum_j p_j (1 - p_j) with p = P(w = 1), the density of a Beta distribution, which
           drives probabilities to 0 and 1: only then is the network of the likeliest weights the one that was trained

Where it differs: weights are multiplied by a learned scale, which starts as that of `methods.twn` for the weight that
they start from, as not every layer here has a batch norm behind it; at test time every weight is its likeliest value,
where the paper also draws several networks and takes the best; and a product that a module's own code computes is
trained by the means alone. The decay of ternary logits is left out, as its weight is no more than 1e-11 in the authors'
code, and so is the 0.001 that it adds to v, which is no small part of it where the scale is not 1. The probabilities
start when the network is calibrated first, and what they have learned stays when it is calibrated again. Binary weights
count and are stored with 2 bits, as plans have no width of 1. Activations stay in float, as in the paper. Its networks
start from trained weights, and their last layer is in float; here it is like all others, or, with `Spec.edge_bits=32`,
in float with the first one.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesbits.methods.method import Method
from bayesbits.methods.quantizer import MethodQuantizer
from bayesbits.methods.twn import scale_and_signs
from bayesbits.nn.quantizer import broadcasting

LEAST, MOST = 0.05, 0.95
CERTAINTY = 1e-6
"""lambda, as in the authors' code."""


class LrnetQuantizer(MethodQuantizer):
    """Ternary weights with learned probabilities; called in training it returns their means."""

    samples_outputs = True
    needs_sample = True
    only_bits = 2
    rounds_to_nearest = False
    ternary: ClassVar[bool] = True

    def make_parameters(self) -> None:
        self.log_scale = nn.Parameter(torch.tensor(0.0))
        self.zero_logits = nn.Parameter(torch.zeros(1)) if self.ternary else None
        self.sign_logits = nn.Parameter(torch.zeros(1))

    def quantize(self, x: Tensor) -> Tensor:
        values = ((self.mean() if self.training else self.likeliest()) * self.scale).to(x.dtype)
        # The weight gives its strides, and gets a gradient of zero: parallel training waits for one of every parameter.
        return 0.0 * x + values

    @property
    def scale(self) -> Tensor:
        """What the weights -1, 0 and 1 are multiplied by."""
        return torch.exp(self.log_scale)

    def moments(self) -> tuple[Tensor, Tensor]:
        """E[w] and E[w^2], without the scale."""
        sign = 2 * torch.sigmoid(self.sign_logits) - 1
        if self.zero_logits is None:
            return sign, torch.ones_like(sign)
        present = torch.sigmoid(-self.zero_logits)
        return present * sign, present

    def mean(self) -> Tensor:
        """E[w], without the scale."""
        return self.moments()[0]

    def variance(self, stretch: Tensor | None = None) -> Tensor:
        """Var[w], with the scale."""
        mean, square = self.moments()
        variance = (square - mean.square()) * self.scale.square()
        return variance if stretch is None else variance * rounded_to(broadcasting(stretch, variance)).square()

    def quantize_stretched(self, x: Tensor, stretch: Tensor) -> Tensor:
        return self.quantize(x) * rounded_to(broadcasting(stretch, x))

    @property
    def holds_weight(self) -> bool:
        return self.sign_logits.dim() > 1

    def likeliest(self) -> Tensor:
        """The likeliest value of every weight: -1, 0 or 1."""
        with torch.no_grad():
            positive = torch.sigmoid(self.sign_logits)
            signs = torch.where(positive >= 0.5, 1.0, -1.0)
            if self.zero_logits is None:
                return signs
            zero = torch.sigmoid(self.zero_logits)
            return torch.where(zero > (1 - zero) * torch.maximum(positive, 1 - positive), 0.0, signs)

    @property
    def beta(self) -> Tensor:
        """The end of the range whose step is the scale."""
        return self.scale * self.levels()

    def range_parameters(self) -> list[nn.Parameter]:
        logits = [self.sign_logits] if self.zero_logits is None else [self.zero_logits, self.sign_logits]
        return [*logits, self.log_scale]

    def put_range(self, beta: float) -> None:
        self.log_scale.fill_(math.log(beta / self.levels()))

    @torch.no_grad()
    def start(self, sample: Tensor) -> None:
        """Take the probabilities from a weight; the parameters get its shape."""
        weight = sample.float()
        scale = weight.abs().mean() if self.zero_logits is None else scale_and_signs(weight)[0]
        self.log_scale.copy_(scale.clamp_min(1e-12).log())
        normal = weight / weight.std(correction=int(weight.numel() > 1)).clamp_min(1e-12)
        zero = torch.zeros_like(normal)
        if self.zero_logits is not None:
            zero = (MOST - (MOST - LEAST) * normal.abs()).clamp(LEAST, MOST)
            self.zero_logits.data = torch.logit(zero)
        positive = (0.5 * (1 + normal / (1 - zero))).clamp(LEAST, MOST)
        self.sign_logits.data = torch.logit(positive)


def rounded_to(stretch: Tensor) -> Tensor:
    """1 rounded to a grid with steps of `stretch`: one of them, or 0."""
    return torch.where(stretch < 2, stretch, torch.zeros_like(stretch))


class BinaryLrnetQuantizer(LrnetQuantizer):
    """Binary weights: -1 or 1, times the scale."""

    ternary = False

    def regularizer(self) -> Tensor:
        positive = torch.sigmoid(self.sign_logits)
        return CERTAINTY * (positive * (1 - positive)).sum()


PAPER = "Shayer et al., Learning Discrete Weights Using the Local Reparameterization Trick, ICLR 2018"
METHOD = Method(
    name="lrnet",
    title="LR-Net",
    paper=PAPER,
    weights=LrnetQuantizer,
    widths=(2, 32),
    edge_bits=32,
    ranges={"lr": 1e-2},
)
BINARY = Method(
    name="lrnet_binary",
    title="LR-Net binary",
    paper=PAPER,
    weights=BinaryLrnetQuantizer,
    widths=(2, 32),
    edge_bits=32,
    ranges={"lr": 1e-2},
)
