"""Post-training within a budget: the gates of every point are projected onto it, and the best of the plans is chosen.

A sweep's points lie at the costs that its weights of the penalty lead to. Its gates say which bits and channels matter
at each of them, so that the gates of any point can be projected onto a budget (`compression.projection`). The loss on
the examples decides which of these plans is best.
"""

from collections.abc import Callable

import torch
from torch import nn

from bayesbits.compression.budget import Budget
from bayesbits.compression.compressor import Compressor
from bayesbits.compression.projection import project
from bayesbits.compression.smallest_plan import check_reachable
from bayesbits.posttraining.front_points import read_point
from bayesbits.posttraining.losses import BatchLoss
from bayesbits.posttraining.quantizer_state import quantizers_restored
from bayesbits.records.front import Point


class BudgetPoints:
    """The plans within a budget that a sweep leads to; `best` is the one with the least loss on the examples."""

    def __init__(self, compressor: Compressor, budget: Budget, loss: BatchLoss, batches: int) -> None:
        """Raises a `BudgetError` where the budget is below the smallest cost; `batches` is the number of batches."""
        check_reachable(compressor.attachment, budget)
        self.compressor, self.budget, self._loss, self._batches = compressor, budget, loss, batches
        self._least = float("inf")
        self._best: Point | None = None

    @torch.no_grad()
    def add(self, mu: float, evaluate: Callable[[nn.Module], float] | None) -> None:
        """Project the present gates; nothing of the network changes."""
        plan = project(self.compressor.attachment, self.budget)
        with quantizers_restored(self.compressor.attachment):
            self.compressor.fix(plan)
            loss = sum(float(self._loss(index)) for index in range(self._batches))
            if self._best is None or loss < self._least:
                score = None if evaluate is None else float(evaluate(self.compressor.model))
                self._least = loss
                self._best = read_point(self.compressor, plan, score=score, mu=mu)

    @property
    def best(self) -> Point:
        """The point within the budget with the least loss on the examples."""
        assert self._best is not None
        return self._best
