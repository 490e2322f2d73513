"""The default weights of the penalty, chosen for a network and a loss by a short probe.

What a weight mu means depends on the network: its penalty is a sum over all tensors, and its loss may be in nats, a
cosine or a squared error. A network's own scale is the weight at which all tensors at their lowest widths cost as much
in the loss as they save in the penalty:

    mu_0 = (loss at the lowest widths - loss at the widest) / (penalty at the widest - penalty at the lowest widths)

Tensors that the penalty does not charge keep their widest width, such as activations where bytes are limited. The
default weights are multiples of it, the same for every network and loss.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bayesbits.compression.compressor import Compressor
from bayesbits.nn.gates import Gates
from bayesbits.posttraining.quantizer_state import quantizers_restored

CLOSED_LOGIT = -6.0
USUAL_WEIGHT = 0.0125  # that of ResNet-20 with the loss "output", where a probe says nothing

# The multiples, by the kind of gates. On ResNet-20 they give the weights of the paper for hard concrete gates; gates
# without noise close at smaller weights.
_WITHOUT_NOISE = (0.00024, 0.0008, 0.0024, 0.008, 0.024, 0.08, 0.24, 0.8)
MULTIPLES = {
    "hard_concrete": (0.008, 0.04, 0.08, 0.2, 0.4, 0.8, 1.6, 4.0),
    "hard_sigmoid": _WITHOUT_NOISE,
    "sigmoid": _WITHOUT_NOISE,
}


def default_weights(
    compressor: Compressor, penalty: Callable[[], Tensor], loss: Callable[[int], Tensor], batches: int
) -> tuple[float, ...]:
    """The default weights of a penalty, to two digits, for a loss that is a function of the index of a batch."""
    scale = natural_weight(compressor, penalty, loss, batches)
    return tuple(float(f"{scale * multiple:.2g}") for multiple in MULTIPLES[compressor.spec.gates])


@torch.no_grad()
def natural_weight(
    compressor: Compressor, penalty: Callable[[], Tensor], loss: Callable[[int], Tensor], batches: int
) -> float:
    """mu_0, from at most two batches.

    It is the usual weight where only channels learn, and where the lowest widths do not raise the loss, as in a network
    that is not trained.
    """
    attachment = compressor.attachment
    learning = [quantizer.gates for quantizer in attachment.quantizers.values() if quantizer.mode == "learning"]
    if not learning:
        return USUAL_WEIGHT
    values = []
    with quantizers_restored(attachment):
        for gates in learning:
            gates.reopen()
        for closed in ([], _charged(learning, penalty)):
            for gates in closed:  # a tensor keeps its lowest width
                gates.logits[0 if gates.open_first else 1 :] = CLOSED_LOGIT
            losses = [loss(index) for index in range(min(2, batches))]
            values.append((float(torch.stack(losses).mean()), float(penalty())))
    (wide_loss, wide_penalty), (low_loss, low_penalty) = values
    saved = wide_penalty - low_penalty
    scale = (low_loss - wide_loss) / saved if saved > 0 else math.nan
    return scale if math.isfinite(scale) and scale > 0 else USUAL_WEIGHT


def _charged(learning: list[Gates], penalty: Callable[[], Tensor]) -> list[Gates]:
    """The gates that have an influence on the penalty."""
    able = [gates for gates in learning if gates.logits.requires_grad and gates.logits.numel()]
    with torch.enable_grad():
        slopes = torch.autograd.grad(penalty(), [gates.logits for gates in able], allow_unused=True) if able else ()
    return [gates for gates, slope in zip(able, slopes, strict=True) if slope is not None and bool(slope.any())]
