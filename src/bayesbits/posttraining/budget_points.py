"""Post-training within a budget: the gates of every point are projected onto it, and the best of the plans is chosen.

A sweep's points lie at the costs that its weights of the penalty lead to. Its gates say which bits and channels matter
at each of them, so that the gates of any point can be projected onto a budget (`compression.projection`), once with all
widths and once with none above 8 bits: above that next to nothing is gained, and gates without influence on the loss
say so late. The loss on the examples decides which of these plans is best.

The ranges of a point suit the widths that its gates were at, and the projection has moved them. So for the best plan
there are several sets of ranges, between which the loss on the examples decides again: those of the point; those of
least squared error at the widths of the plan; the same with min/max from 8 bits on; and, where ranges learn, the best
of these after they have learned for as many steps as a point has.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bayesbits.compression.budget import Budget
from bayesbits.compression.compressor import Compressor
from bayesbits.compression.projection import project
from bayesbits.compression.range_estimation import FINE_BITS
from bayesbits.posttraining.front_points import put_range, read_point, read_range
from bayesbits.posttraining.losses import BatchLoss
from bayesbits.posttraining.quantizer_state import quantizers_restored
from bayesbits.records.front import Point
from bayesbits.records.plan import Plan

MOST_BITS = (None, 8)  # the widest widths with which gates are projected; None: all of them


class BudgetPoints:
    """The plans within a budget that a sweep leads to; `settle` returns the one with the least loss on the examples."""

    def __init__(self, compressor: Compressor, budget: Budget, loss: BatchLoss, inputs: list[Any]) -> None:
        """The budget can be reached; `inputs` are those of the batches."""
        self.compressor, self.budget, self._loss, self._inputs = compressor, budget, loss, inputs
        self._least = float("inf")
        self._best: Point | None = None

    def add(self, mu: float) -> None:
        """Project the present gates; nothing of the network changes."""
        plans: list[Plan] = []
        for most_bits in MOST_BITS:
            plan = project(self.compressor.attachment, self.budget, most_bits=most_bits)
            if plan not in plans:
                plans.append(plan)
                with quantizers_restored(self.compressor.attachment):
                    self.compressor.fix(plan)
                    self._consider(plan, mu)

    def settle(self, learn_ranges: Callable[[], None] | None, evaluate: Callable[[nn.Module], float] | None) -> Point:
        """The best plan with its best ranges; nothing of the network changes.

        `learn_ranges` lets the ranges of the network learn, whose widths are fixed; None: they do not learn.
        """
        attachment = self.compressor.attachment
        with quantizers_restored(attachment):
            point = self._put_best()
            self._fit(point)
            if learn_ranges is not None:
                self._put_best()
                learn_ranges()
                self._consider(point.plan, point.mu)
            point = self._put_best()
            score = None if evaluate is None else float(evaluate(self.compressor.model))
            return read_point(self.compressor, point.plan, score=score, mu=point.mu)

    def _fit(self, point: Point) -> None:
        """Consider ranges that are fitted to the widths of a point, to whose plan the network is fixed."""
        quantizers = self.compressor.attachment.quantizers
        self.compressor.calibrate(self._inputs, "mse")  # of tensors with a final width, at this width
        self._consider(point.plan, point.mu)
        narrow = {name: read_range(q) for name, q in quantizers.items() if point.plan.bits.get(name, 0) < FINE_BITS}
        self.compressor.calibrate(self._inputs, "minmax")
        for name, fitted in narrow.items():
            put_range(quantizers[name], fitted)
        self._consider(point.plan, point.mu)

    def _put_best(self) -> Point:
        """Fix the network to the best plan so far, with its ranges."""
        assert self._best is not None
        self.compressor.fix(self._best.plan)
        for name, quantizer in self.compressor.attachment.quantizers.items():
            put_range(quantizer, self._best.ranges[name])
        return self._best

    @torch.no_grad()
    def _consider(self, plan: Plan, mu: float | None) -> None:
        """Keep the network, fixed to a plan, where its loss is the least so far."""
        loss = sum(float(self._loss(index)) for index in range(len(self._inputs)))
        if self._best is None or loss < self._least:
            self._least, self._best = loss, read_point(self.compressor, plan, mu=mu)
