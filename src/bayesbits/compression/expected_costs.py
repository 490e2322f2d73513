"""The expected costs of a network under the limits of a budget: one number for each limit, differentiable in the gates.

What gates learn to reduce is the cost that the budget limits: bit operations, bytes or milliseconds.
"""

import math

import torch
from torch import Tensor, nn

from bayesbits.compression.attachment import Attachment
from bayesbits.compression.budget import Budget
from bayesbits.compression.latency_prices import LatencyPrices
from bayesbits.compression.penalty_base import Penalty
from bayesbits.compression.width_penalty import WidthPenalty


class ExpectedCosts(nn.Module):
    """The expected costs under a budget, in the order of `limits`; it has no parameters and nothing in a state_dict."""

    def __init__(self, attachment: Attachment, budget: Budget) -> None:
        super().__init__()
        self.limits = limits_of(attachment, budget)
        """The limits whose expectation is known, by the name of the field of `Cost` that each bounds."""
        self.latency = None if budget.table is None else LatencyPrices(attachment, budget.table)
        # A plain container: these modules are owned by the network.
        self._owned = {"relative_bops": attachment.expected_bops, "weight_bytes": attachment.expected_bytes}

    def forward(self, decided: bool = False) -> Tensor:
        """[limits]: the costs; `decided`: those of the gates' test-time decision, which have no gradient."""
        return torch.stack([self.penalty(name)(decided=decided).float() for name in self.limits])

    def penalty(self, name: str) -> Penalty | WidthPenalty | LatencyPrices:
        """What has the expected cost under one of the limits."""
        if name == "latency_ms":
            assert self.latency is not None
            return self.latency
        return self._owned[name]


def limits_of(attachment: Attachment, budget: Budget) -> dict[str, float]:
    """The limits whose expectation is known: bit operations in percent (the lower one of two), bytes, milliseconds."""
    limits = budget.limits
    if (bops := limits.pop("bops", None)) is not None:
        relative = 100 * bops / attachment.cost_model.dense().bops
        limits["relative_bops"] = min(relative, limits.get("relative_bops", math.inf))
    return limits
