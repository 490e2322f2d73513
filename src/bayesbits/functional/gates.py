"""Gates: learnable switches, between 0 and 1 while training and exactly 0 or 1 afterwards.

A gate has one parameter, the logit phi. Three kinds turn it into a value while training:

- `hard_concrete` (the paper's): noise u ~ U(0, 1), s = sigmoid((logit(u) + phi) / tau),
  z = min(1, max(0, s (zeta - gamma) + gamma)). Zero and one both have positive probability, so that a gate that is
  nearly off is sometimes on and can be called back by the task;
- `hard_sigmoid`: the same stretching without noise, z = min(1, max(0, sigmoid(phi) (zeta - gamma) + gamma));
- `sigmoid`: z = sigmoid(phi).

All kinds share the probability of being on, which the penalty uses, and the test-time decision.
"""

import math

import torch
from torch import Tensor

TEMPERATURE = 2 / 3  # tau
STRETCH_UP = 1.1  # zeta
STRETCH_DOWN = -0.1  # gamma
THRESHOLD = 0.34  # t: a gate is off when exact zero is more likely than this
INITIAL_LOGIT = 6.0  # gates start open

KINDS = ("hard_concrete", "hard_sigmoid", "sigmoid")

# The logit at which P(z > 0) is one half.
HALF_LOGIT = TEMPERATURE * math.log(-STRETCH_DOWN / STRETCH_UP)


def check_kind(kind: str) -> None:
    """Raise unless `kind` names a kind of gate."""
    if kind not in KINDS:
        raise ValueError(f"gates must be one of {', '.join(KINDS)}, got {kind!r}")


def _stretch(s: Tensor) -> Tensor:
    return torch.clamp(s * (STRETCH_UP - STRETCH_DOWN) + STRETCH_DOWN, 0.0, 1.0)


def sample_hard_concrete(logits: Tensor, uniform: Tensor) -> Tensor:
    """One sample of every gate, differentiable in the logits; `uniform` is noise from U(0, 1)."""
    return _stretch(torch.sigmoid((torch.logit(uniform, eps=1e-6) + logits) / TEMPERATURE))


def gate_values(logits: Tensor, kind: str, uniform: Tensor | None = None) -> Tensor:
    """The training-time values of gates of one kind; noise is drawn here where the kind needs it and none is given."""
    check_kind(kind)
    if kind == "hard_concrete":
        return sample_hard_concrete(logits, torch.rand_like(logits) if uniform is None else uniform)
    return _stretch(torch.sigmoid(logits)) if kind == "hard_sigmoid" else torch.sigmoid(logits)


def probability_on(logits: Tensor) -> Tensor:
    """P(z > 0) = sigmoid(phi - tau log(-gamma / zeta))."""
    return torch.sigmoid(logits - HALF_LOGIT)


def decide(logits: Tensor) -> Tensor:
    """The test-time decision: True where P(z = 0) = sigmoid(tau log(-gamma / zeta) - phi) is below the threshold."""
    return torch.sigmoid(HALF_LOGIT - logits) < THRESHOLD
