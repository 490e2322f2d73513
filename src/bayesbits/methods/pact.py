"""PACT: activations are clipped at a learned level, which decays; weights are quantized as in DoReFa-Net.

J. Choi et al., PACT: Parameterized Clipping Activation for Quantized Neural Networks, 2018. Activations with k bits:

    y = 0.5 (|x| - |x - alpha| + alpha) = clip(x, 0, alpha)
    y_q = round(y (2^k - 1) / alpha) alpha / (2^k - 1)
    d y_q / d alpha = 0 for x < alpha, 1 otherwise;  d y_q / d x = 1 inside
    the loss has lambda alpha^2 for every level, so that alpha shrinks where nothing holds it up

Weights (S. Zhou et al., DoReFa-Net, 2016), with r = tanh(w) / (2 c) + 1/2 and c = max|tanh(w)|:

    w_q = c (2 round(r (2^k - 1)) / (2^k - 1) - 1)

Where it differs: alpha starts at the calibrated range, not at 10; activations with values below zero are clipped at
-alpha, too; and DoReFa leaves the factor c out, which a batch norm removes again, but not every layer here has one. The
grid of the weights has 2^k points and no zero, which no symmetric integer grid of k bits has: such weights are counted
with k bits, as in the paper, and not deployed, and the biases of their layers are not rounded. The original keeps the
first and the last layer in float (`Spec.edge_bits=32`).
"""

import torch
from torch import Tensor, nn

from bayesbits.functional.grid import step_size
from bayesbits.methods.method import Method
from bayesbits.methods.quantizer import SMALLEST_SCALE, MethodQuantizer, round_through

DECAY = 2e-4
"""lambda: the weight decay of the paper's ResNet-20 on CIFAR-10, which it takes for alpha as well."""


class PactQuantizer(MethodQuantizer):
    """A learned clipping level for activations."""

    def make_parameters(self) -> None:
        self.level = nn.Parameter(torch.tensor(1.0))

    def quantize(self, x: Tensor) -> Tensor:
        alpha = self.beta
        low = -alpha if self.signed else torch.zeros_like(alpha)
        clipped = torch.clamp(x, low, alpha)
        step = step_size(alpha, self.present_bits, self.signed)
        bounds = self.bounds()
        # Rounding has no gradient of its own, also none for the step: alpha learns from what is clipped alone.
        return clipped + ((clipped / step).round().clamp(*bounds) * step - clipped).detach()

    def regularizer(self) -> Tensor:
        return DECAY * self.level.square()

    @property
    def beta(self) -> Tensor:
        """alpha."""
        return self.level.abs().clamp_min(SMALLEST_SCALE)

    def range_parameters(self) -> list[nn.Parameter]:
        return [self.level]

    def put_range(self, beta: float) -> None:
        self.level.fill_(beta)


class DorefaQuantizer(MethodQuantizer):
    """Weights through tanh, on 2^k points without a zero; nothing is learned but the weights."""

    largest: Tensor

    rounds_to_nearest = False
    not_deployable = (
        "the weights of PACT lie on the grid of DoReFa-Net, which has no zero and 2^k points, and an integer layer "
        "multiplies with symmetric codes. To deploy a network of these widths, train it with method='lsq', for one"
    )

    def make_parameters(self) -> None:
        self.register_buffer("largest", torch.tensor(1.0))

    def quantize(self, x: Tensor) -> Tensor:
        points = float(2**self.present_bits - 1)
        squeezed = torch.tanh(x)
        largest = squeezed.abs().amax().detach().clamp_min(SMALLEST_SCALE)
        position = round_through((squeezed / (2 * largest) + 0.5) * points) / points
        return (2 * position - 1) * largest

    @property
    def beta(self) -> Tensor:
        """The largest weight that calibration has seen; the range follows the weights."""
        return self.largest

    def range_parameters(self) -> list[nn.Parameter]:
        return []

    def put_range(self, beta: float) -> None:
        self.largest.fill_(beta)


METHOD = Method(
    name="pact",
    title="PACT",
    paper="Choi et al., PACT: Parameterized Clipping Activation for Quantized Neural Networks, 2018",
    weights=DorefaQuantizer,
    activations=PactQuantizer,
    widths=(4, 4),
    edge_bits=32,
)
