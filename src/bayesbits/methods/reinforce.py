"""REINFORCE gates: gates are exactly 0 or 1 in training, and learn from the loss itself, less a baseline.

R. J. Williams, Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning, 1992, on the
gates of Bayesian Bits, whose appendix (van Baalen et al. 2020) tried it and gave it up for its variance. For gates z_i
with p_i = P(z_i > 0) and the loss L of a batch:

    z_i = 1 with probability p_i, otherwise 0
    d E[L] / d phi = E[(L - b) d log p(z) / d phi],   d log p(z) / d phi_i = z_i - p_i
    b <- 0.9 b + 0.1 L, the baseline; it starts at the first loss

Everything else, the quantizer, the ranges, the penalty and pruning, is that of Bayesian Bits. All gates of a network
are drawn once in a forward pass, for the whole batch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesbits.functional.gates import HALF_LOGIT
from bayesbits.methods.method import Method
from bayesbits.nn.gates import GateBank

MOMENTUM = 0.9


class ScoreFunction(nn.Module):
    """The gradient of the gates, as a term of the loss whose value is 0; keeps the baseline."""

    baseline: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("baseline", torch.tensor(0.0))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, loss: Tensor, bank: GateBank) -> Tensor:
        """`loss` is that of the latest forward pass, for which the bank has drawn the gates."""
        value = loss.detach().float()
        before = torch.where(self.count > 0, self.baseline, value)
        with torch.no_grad():
            self.baseline.copy_(MOMENTUM * before + (1 - MOMENTUM) * value)
            self.count.add_(1)
        term = (value - before) * log_probability(bank)
        return term - term.detach()


def log_probability(bank: GateBank) -> Tensor:
    """log p(z) of the gates that the bank has drawn last, differentiable in their logits."""
    logits, values = bank.latest()
    position = logits - HALF_LOGIT
    return torch.where(values > 0.5, F.logsigmoid(position), F.logsigmoid(-position)).sum()


METHOD = Method(
    name="reinforce",
    title="REINFORCE gates",
    paper="Williams 1992, as in the appendix of van Baalen et al., Bayesian Bits, NeurIPS 2020",
    gates="bernoulli",
    folds=True,
)
