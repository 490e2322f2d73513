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
BERNOULLI = "bernoulli"
"""Gates that are 0 or 1 in training and have no gradient; those of `methods.reinforce`, and none of a user's choice."""
RANDOM_KINDS = ("hard_concrete", BERNOULLI)

# The logit at which P(z > 0) is one half.
HALF_LOGIT = TEMPERATURE * math.log(-STRETCH_DOWN / STRETCH_UP)


def check_kind(kind: str) -> None:
    """Raise unless `kind` names a kind of gate."""
    if kind not in (*KINDS, BERNOULLI):
        raise ValueError(f"gates must be one of {', '.join(KINDS)}, got {kind!r}")


def _stretch(s: Tensor) -> Tensor:
    return torch.clamp(s * (STRETCH_UP - STRETCH_DOWN) + STRETCH_DOWN, 0.0, 1.0)


def sample_hard_concrete(logits: Tensor, uniform: Tensor) -> Tensor:
    """One sample of every hard concrete gate, differentiable in the logits.

    Args:
        logits: The gates' parameters phi.
        uniform: Noise from U(0, 1), one number for each gate.

    Returns:
        Values from 0 to 1; both ends have positive probability.

    Example::

        >>> import torch
        >>> from bayesbits.functional import sample_hard_concrete
        >>> sample_hard_concrete(torch.tensor([-6.0, 0.0, 6.0]), torch.full((3,), 0.5))
        tensor([0.0000, 0.5000, 1.0000])
    """
    return _stretch(torch.sigmoid((torch.logit(uniform, eps=1e-6) + logits) / TEMPERATURE))


def gate_values(logits: Tensor, kind: str, uniform: Tensor | None = None) -> Tensor:
    """The values of gates in training.

    Args:
        logits: The gates' parameters phi.
        kind: "hard_concrete", "hard_sigmoid" or "sigmoid".
        uniform: For "hard_concrete": noise from U(0, 1); drawn here by default.

    Returns:
        Values from 0 to 1, differentiable in the logits.

    Raises:
        ValueError: There is no such kind.

    Example::

        >>> import torch
        >>> from bayesbits.functional import gate_values
        >>> gate_values(torch.tensor([-6.0, 0.0, 6.0]), "hard_sigmoid")
        tensor([0.0000, 0.5000, 1.0000])
    """
    check_kind(kind)
    if kind == BERNOULLI:
        drawn = torch.rand_like(logits) if uniform is None else uniform
        return (drawn < probability_on(logits)).to(logits.dtype)
    if kind == "hard_concrete":
        return sample_hard_concrete(logits, torch.rand_like(logits) if uniform is None else uniform)
    return _stretch(torch.sigmoid(logits)) if kind == "hard_sigmoid" else torch.sigmoid(logits)


def probability_on(logits: Tensor) -> Tensor:
    """The probability that a gate is on: P(z > 0) = sigmoid(phi - tau log(-gamma / zeta)).

    Args:
        logits: The gates' parameters phi.

    Returns:
        A probability for each gate; it is what the penalties charge for.

    Example::

        >>> import torch
        >>> from bayesbits.functional import probability_on
        >>> probability_on(torch.tensor([-6.0, 0.0, 6.0]))
        tensor([0.0121, 0.8318, 0.9995])
    """
    return torch.sigmoid(logits - HALF_LOGIT)


def decide(logits: Tensor) -> Tensor:
    """The test-time decision: a gate is open where P(z = 0) = sigmoid(tau log(-gamma / zeta) - phi) is below 0.34.

    Args:
        logits: The gates' parameters phi.

    Returns:
        True for every gate that is open.

    Example::

        >>> import torch
        >>> from bayesbits.functional import decide
        >>> decide(torch.tensor([-1.0, -0.9, 6.0]))
        tensor([False,  True,  True])
    """
    return torch.sigmoid(HALF_LOGIT - logits) < THRESHOLD
