"""LSQ: the step is learned, with a gradient that is scaled to the size of its tensor.

S. K. Esser et al., Learned Step Size Quantization, ICLR 2020. For x with the step s and the codes -Q_N to Q_P:

    x_q = s round(clip(x / s, -Q_N, Q_P))
    d x_q / d s = round(x / s) - x / s  inside, -Q_N below, Q_P above;  d x_q / d x = 1 inside
    the gradient of s is multiplied by g = 1 / sqrt(N Q_P)
    s starts at 2 mean|x| / sqrt(Q_P)

N is the number of weights, or of features of one example. Here Q_N = Q_P for signed codes (see `methods.quantizer`),
and the first and the last layer are quantized like all others unless `Spec.edge_bits` is 8, as in the original. The
original trains everything by SGD: so does the step here, whose gradient scale Adam would undo, beside weights that have
the recipe's optimizer, its schedule and its weight decay. The original starts from a trained network.
"""

import torch
from torch import Tensor, nn

from bayesbits.methods.method import Method
from bayesbits.methods.quantizer import SMALLEST_SCALE, MethodQuantizer, round_through, scale_gradient


class LsqQuantizer(MethodQuantizer):
    """A learned step at a fixed width."""

    learns_step = True
    needs_sample = True

    def make_parameters(self) -> None:
        self.scale = nn.Parameter(torch.tensor(1.0))

    def quantize(self, x: Tensor) -> Tensor:
        low, high = self.bounds()
        count = x.numel() if self.of_weight else x[:1].numel()
        step = scale_gradient(self.positive_scale, (max(count, 1) * high) ** -0.5)
        return round_through((x / step).clamp(low, high)) * step

    @property
    def positive_scale(self) -> Tensor:
        """s."""
        return self.scale.abs().clamp_min(SMALLEST_SCALE)

    @property
    def beta(self) -> Tensor:
        return self.positive_scale * self.levels()

    def range_parameters(self) -> list[nn.Parameter]:
        return [self.scale]

    def put_range(self, beta: float) -> None:
        self.scale.fill_(beta / self.levels())

    @torch.no_grad()
    def start(self, sample: Tensor) -> None:
        start = 2 * sample.abs().float().mean() / self.bounds()[1] ** 0.5
        if bool(start > SMALLEST_SCALE):
            self.scale.copy_(start)


METHOD = Method(
    name="lsq",
    title="LSQ",
    paper="Esser et al., Learned Step Size Quantization, ICLR 2020",
    weights=LsqQuantizer,
    activations=LsqQuantizer,
    widths=(8, 8),
    edge_bits=8,
    ranges={"optimizer": "sgd", "lr": 1e-2, "momentum": 0.9},
)
