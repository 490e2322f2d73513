"""What the gates of a sweep are charged for: the cost that a budget limits, or the penalty of the spec.

    sum over the limits of expected cost / limit

A limit on bytes asks for no narrow activation, and one on milliseconds for no width below 8 bits: gates that were
charged for bit operations would close for nothing. Where the budget limits only bit operations, and where there is
none, the penalty is that of the spec.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bayesbits.compression.budget import Budget
from bayesbits.compression.compressor import Compressor
from bayesbits.compression.expected_costs import ExpectedCosts

OF_BIT_OPERATIONS = ("paper", "variational", "expected_bops")
"""The penalties of a spec that a limit on bit operations is met with."""


def sweep_penalty(compressor: Compressor, budget: Budget | None) -> Callable[[], Tensor]:
    """The penalty of a sweep, as a function of the present gates; it is differentiable in their logits."""
    if budget is None:
        return compressor.penalty
    costs = ExpectedCosts(compressor.attachment, budget)
    if list(costs.limits) == ["relative_bops"] and compressor.spec.penalty in OF_BIT_OPERATIONS:
        return compressor.penalty

    def penalty() -> Tensor:
        limits = costs.limits
        return torch.stack([costs.penalty(name)().float() / limit for name, limit in limits.items()]).sum()

    return penalty
