"""Widths with which a network is within all limits of a budget at once, or the proof that there are none.

Narrow widths have the fewest bytes and bit operations, and need not be the fastest: limits on both may be met only by
widths in between. Wanted are widths x whose costs c_1(x), c_2(x), ... are all at most 1, in parts of their limits
(`compression.limit_terms`). For weights that are at least 0 and add up to 1,

    least(weights) = min over x of (weights[1] c_1(x) + weights[2] c_2(x) + ...)

is found exactly by `compression.table_sums`. If it is above 1 for some weights, there are no such widths; otherwise its
x is tried, and the weights move to the limits that x exceeds, by Polyak's subgradient steps. Where that ends with
neither, one tensor takes each of its widths in turn, and the same is done for the others: branch and bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bayesbits.compression.attachment import Attachment
from bayesbits.compression.budget import Budget
from bayesbits.compression.limit_terms import LimitTerms
from bayesbits.compression.table_sums import TableSum
from bayesbits.records.plan import Plan

_FIRST_STEPS, _STEPS = 24, 6  # of the weights, before the first tensor is fixed and before each other one
_AIM = 1e-3  # by how much above 1 the steps aim, so that a proof is reached and not only approached
_ROUNDING = 1e-9  # sums in another order differ by less
MOST_NODES = 1000  # sets of fixed tensors that are looked at


class UndecidedError(Exception):
    """Neither widths nor the proof that there are none were found, with as much work as is allowed."""


def widths_within(attachment: Attachment, budget: Budget, plan: Plan, most_nodes: int = MOST_NODES) -> Plan | None:
    """The plan with the channels of another one, and widths within all limits; None where there are none.

    Raises `UndecidedError` where the limits are too near to what can just be reached for either to be found with so
    many nodes.
    """
    return _Search(attachment, budget, plan).find(most_nodes)


@dataclass(frozen=True)
class _Node:
    """Some tensors with a choice that is made, and the weights of the limits to start with."""

    fixed: Mapping[str, int]
    weights: NDArray[np.float64]


class _Search:
    def __init__(self, attachment: Attachment, budget: Budget, plan: Plan) -> None:
        self._attachment, self._budget, self._plan = attachment, budget, plan
        self._terms = LimitTerms.of(attachment, budget, plan)
        self._choices = self._terms.choices
        sizes = {name: len(own) for name, own in self._choices.items()}
        scopes = [term.names for term in self._terms.terms]
        self._sum = TableSum([*scopes, *((name,) for name in sizes)], sizes)
        tables = [term.table for term in self._terms.terms]
        self._flat = [(table.reshape(len(table), -1), table.shape[1:]) for table in tables]
        self._nothing = {name: np.zeros(size) for name, size in sizes.items()}  # no choice is excluded

    def find(self, most_nodes: int) -> Plan | None:
        number = len(self._terms.rest)
        waiting = [_Node({}, np.full(number, 1.0 / number))]
        for _ in range(most_nodes):
            if not waiting:
                return None
            found, children = self._explore(waiting.pop())
            if found is not None:
                return found
            waiting += children
        raise UndecidedError

    def _explore(self, node: _Node) -> tuple[Plan | None, list[_Node]]:
        """A plan within the budget, or the nodes that are left to be explored, the most promising one last."""
        weights, tried = node.weights, []
        for _ in range(_STEPS if node.fixed else _FIRST_STEPS):
            least, chosen = self._least(weights, node.fixed)
            if least > 1 + _ROUNDING:
                return None, []
            costs = self._terms.costs(chosen)
            if costs.max() <= 1 + _ROUNDING and self._allows(plan := self._plan_of(chosen)):
                return plan, []
            tried.append((costs.max(), chosen))
            direction = costs - costs.mean()
            if not (length := direction @ direction):
                break
            weights = _onto_simplex(weights + (1 + _AIM - least) / length * direction)
        name = self._branch(node.fixed, [chosen for _, chosen in tried])
        if name is None:
            return None, []
        best = min(tried, key=lambda one: one[0])[1][name]
        order = sorted(range(len(self._choices[name])), key=lambda choice: choice == best)
        return None, [_Node({**node.fixed, name: choice}, weights) for choice in order]

    def _branch(self, fixed: Mapping[str, int], tried: list[dict[str, int]]) -> str | None:
        """The tensor that is fixed next: of those on which the tries differ, the one that costs depend on most."""
        free = [name for name, own in self._choices.items() if len(own) > 1 and name not in fixed]
        differ = [name for name in free if len({chosen[name] for chosen in tried}) > 1]
        return max(differ or free, key=self._spread, default=None)

    def _spread(self, name: str) -> float:
        """How much the costs depend on a tensor, at most."""
        with_it = [term for term in self._terms.terms if name in term.names]
        return sum(float(np.ptp(term.table, 1 + term.names.index(name)).max()) for term in with_it)

    def _least(self, weights: NDArray[np.float64], fixed: Mapping[str, int]) -> tuple[float, dict[str, int]]:
        """The least weighted sum of the costs with the choices that are fixed, and all choices."""
        weighted = [(weights @ flat).reshape(shape) for flat, shape in self._flat]
        excluded = dict(self._nothing)
        for name, place in fixed.items():
            excluded[name] = np.where(np.arange(len(self._choices[name])) == place, 0.0, np.inf)
        least, chosen = self._sum.least([*weighted, *excluded.values()])
        return least + float(weights @ self._terms.rest), chosen

    def _plan_of(self, chosen: Mapping[str, int]) -> Plan:
        bits = {name: self._choices[name][place] for name, place in chosen.items()}
        return replace(self._plan, bits={**self._plan.bits, **bits})

    def _allows(self, plan: Plan) -> bool:
        return self._budget.allows(self._attachment.cost_model.count(plan, self._budget.table))


def _onto_simplex(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest weights that are at least 0 and add up to 1."""
    ordered = np.sort(weights)[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, len(weights) + 1)
    last = int(np.nonzero(ordered > excess)[0][-1])
    nearest: NDArray[np.float64] = np.maximum(weights - excess[last], 0.0)
    return nearest
