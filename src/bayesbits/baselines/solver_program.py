"""The integer program of the solver: a width for every tensor, with the least sum of scores within a budget.

    minimize    the sum of score[t, b] x[t, b]
    subject to  sum over b of x[t, b] = 1                                          for every tensor t
                sum over a of y[l, w, a] = x[weight of l, w]                       for every layer l and width w
                sum over w of y[l, w, a] = x[input of l, a]                        for every layer l and width a
                (and the same for products of two activations, with their two operands)
                sum of cost[l, w, a] y[l, w, a] + other costs <= limit             for every limit of the budget

x[t, b] is 1 where the tensor t has b bits, and 0 elsewhere. Bit operations are products of two widths, so that every
layer has a y for each pair of widths, which is then the product of two x and needs no bounds of its own: tensors that
layers share couple their pairs. The costs are those that `CostModel.count` counts for plans with the widths of each
pair, layer by layer. Predicted milliseconds also depend on the tensor behind a layer, and on all activations together:
where a plan takes more of them than the program says, the program is solved again with a lower limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from bayesbits.compression.attachment import Attachment
from bayesbits.compression.budget import Budget
from bayesbits.compression.planning import make_plan, read_widths
from bayesbits.compression.smallest_plan import check_widths_reachable
from bayesbits.cost.cost import Cost
from bayesbits.records.latency_table import NARROW_BITS
from bayesbits.records.plan import Plan
from bayesbits.utils.optional_packages import require_packages

Scores = Mapping[str, Mapping[int, float]]
"""By tensor and width: how much the loss is expected to grow, at least 0."""

SECONDS = 120.0  # the most for one program; the best plan until then is taken
_TIGHTER = 1e-6  # by how much a limit is lowered where a plan exceeds it by rounding, at first
_ROUNDS = 12  # of the same program, with other units or a lower limit
_GOOD_UNIT = 0.1  # the sum of scores in units in which the solver's tolerances are small beside it


class WidthProgram:
    """The program for one network and one budget."""

    def __init__(self, attachment: Attachment, budget: Budget) -> None:
        """Raises a `BudgetError` where the budget is below the smallest cost with all channels that are left."""
        require_packages("the solver", "scipy")
        self.attachment, self.budget = attachment, budget
        self._kept = {
            name: tuple(index for index, stays in enumerate(gate.kept().tolist()) if stays)
            for name, gate in attachment.channel_gates.items()
            if gate.fixed and not bool(gate.kept().all())
        }
        self.widths = allowed_widths(attachment)
        check_widths_reachable(attachment, budget, self._narrowest())

    def solve(self, scores: Scores) -> Plan:
        """The plan with the least sum of scores; its counted cost is within the budget."""
        found = self._solve(scores)
        if self.budget.table is None:
            return found
        # Widths up to 8 bits are equally fast, so that the widest of them are a good plan where the program finds less.
        bits = {name: max((w for w in own if w <= NARROW_BITS), default=own[0]) for name, own in self.widths.items()}
        simple = self._plan(bits)
        fits = self.budget.allows(self.attachment.cost_model.count(simple, self.budget.table))
        return simple if fits and _total(scores, simple) < _total(scores, found) else found

    def _solve(self, scores: Scores) -> Plan:
        lowered = 0.0
        for _ in range(_ROUNDS):
            chosen = self._choose(scores, lowered)
            if chosen is None:
                break
            plan = self._plan(chosen)
            cost = self.attachment.cost_model.count(plan, self.budget.table)
            if self.budget.allows(cost):
                return plan
            lowered = max(_TIGHTER, 2 * lowered, lowered + self.budget.used(cost) - 1)
        return self._narrowest()

    def _narrowest(self) -> Plan:
        return self._plan({name: own[0] for name, own in self.widths.items()})

    def _plan(self, bits: Mapping[str, int]) -> Plan:
        return make_plan(self.attachment, bits, self._kept)

    def _choose(self, scores: Scores, lowered: float) -> dict[str, int] | None:
        """The widths that solve the program with all limits lowered by a part; None where there are none.

        A width whose score is above the sum of scores of a plan that fits is in no better plan. Without such widths,
        and in units of that sum, small scores are seen beside large ones.
        """
        unit = max((score for own in scores.values() for score in own.values()), default=0.0) or 1.0
        best: dict[str, int] | None = None
        for _ in range(_ROUNDS):
            found = self._choose_in_units(scores, unit, lowered)
            if found is None:
                return best
            best = found
            total = sum(scores[name][found[name]] for name in scores)
            if total >= _GOOD_UNIT * unit or total <= 0:
                return best
            unit = total
        return best

    def _choose_in_units(self, scores: Scores, unit: float, lowered: float) -> dict[str, int] | None:
        from scipy.optimize import Bounds, LinearConstraint, milp

        columns, equations, totals = self._structure
        number = len(columns) + len(self._pairs)
        price, most = np.zeros(number), np.ones(number)
        for place, (name, bits) in enumerate(columns):
            score = scores.get(name, {}).get(bits, 0.0) / unit
            price[place], most[place] = min(score, 1.0), 1.0 if score <= 1.0 + 1e-9 else 0.0
        constraints = [LinearConstraint(equations, totals, totals)]
        for name, limit in self.budget.limits.items():
            row, rest = self._costs(name)
            row_of_all = np.concatenate([np.zeros(len(columns)), row / limit])
            constraints.append(LinearConstraint(row_of_all[None], -np.inf, 1.0 - lowered - rest / limit))
        integrality = np.concatenate([np.ones(len(columns)), np.zeros(len(self._pairs))])
        result = milp(
            price, integrality=integrality, bounds=Bounds(0.0, most), constraints=constraints,
            options={"time_limit": SECONDS},
        )  # fmt: skip
        if result.x is None:
            return None
        return {name: bits for place, (name, bits) in enumerate(columns) if result.x[place] > 0.5}

    @cached_property
    def _pairs(self) -> list[tuple[int, int, int]]:
        """A column for every layer or product, by its number, and every pair of widths of its two tensors."""
        return [
            (number, *pair)
            for number, (first, second) in enumerate(self._multiplied)
            for pair in product(self.widths[first], self.widths[second])
        ]

    @cached_property
    def _multiplied(self) -> list[tuple[str, str]]:
        """The weight and the input of every layer, and behind these the operands of products of two activations."""
        topology = self.attachment.topology
        of_layers = [(layer.parameter, layer.activation) for layer in topology.layers]
        return of_layers + [(product.left, product.right) for product in topology.products]

    @cached_property
    def _structure(self) -> tuple[list[tuple[str, int]], Any, np.ndarray]:
        """The columns x, and the equations over x and y with their right sides."""
        from scipy.sparse import coo_array

        columns = [(name, bits) for name, own in self.widths.items() for bits in own]
        entries = list(self._equations({column: place for place, column in enumerate(columns)}))
        rows, places, values = zip(*entries, strict=True)
        shape = (max(rows) + 1, len(columns) + len(self._pairs))
        totals = np.zeros(shape[0])
        totals[: len(self.widths)] = 1.0
        return columns, coo_array((values, (rows, places)), shape=shape).tocsr(), totals

    def _equations(self, place_of: Mapping[tuple[str, int], int]) -> Iterator[tuple[int, int, float]]:
        """Row, column and factor: first the sums over widths, a row for each tensor; then the sums over pairs."""
        for row, (name, own) in enumerate(self.widths.items()):
            yield from ((row, place_of[name, bits], 1.0) for bits in own)
        pairs: dict[int, list[tuple[int, tuple[int, int]]]] = {}
        for place, (number, *pair) in enumerate(self._pairs):
            pairs.setdefault(number, []).append((len(place_of) + place, (pair[0], pair[1])))
        row = len(self.widths)
        for number, both in enumerate(self._multiplied):
            for side, name in enumerate(both):
                for bits in self.widths[name]:
                    yield row, place_of[name, bits], -1.0
                    yield from ((row, place, 1.0) for place, pair in pairs[number] if pair[side] == bits)
                    row += 1

    @cached_property
    def _counted(self) -> dict[tuple[int, int, int], Cost]:
        """For every layer or product and pair of widths a cost in which it has these widths."""
        topology, counted = self.attachment.topology, {}
        first = {*topology.weight_tensors, *(one.left for one in topology.products)}
        every = sorted({bits for own in self.widths.values() for bits in own})
        for weight_bits, input_bits in product(every, every):
            wanted = {name: weight_bits if name in first else input_bits for name in self.widths}
            bits = {name: wanted[name] if wanted[name] in own else own[0] for name, own in self.widths.items()}
            cost = self.attachment.cost_model.count(self._plan(bits), self.budget.table)
            for number, both in enumerate(self._multiplied):
                counted[number, bits[both[0]], bits[both[1]]] = cost
        return counted

    def _costs(self, limit: str) -> tuple[np.ndarray, float]:
        """What every pair adds to a cost, and what is added beside the layers; the units are those of the limit."""
        name = "bops" if limit == "relative_bops" else limit
        unit = self.attachment.cost_model.dense().bops / 100 if limit == "relative_bops" else 1.0
        row = np.array([_parts(self._counted[pair], name)[pair[0]] for pair in self._pairs], dtype=float)
        cost = next(iter(self._counted.values()))
        return row / unit, (getattr(cost, name) - sum(_parts(cost, name))) / unit


def _parts(cost: Cost, name: str) -> list[float]:
    """What every layer, and then every product, adds to a cost; products have neither bytes nor predicted times."""
    return [getattr(part, name, 0.0) for part in cost.parts]


def _total(scores: Scores, plan: Plan) -> float:
    return sum(own[plan.bits[name]] for name, own in scores.items())


def allowed_widths(attachment: Attachment) -> dict[str, tuple[int, ...]]:
    """The widths of every tensor, increasing: those that its rules allow where it learns, and else the present one."""
    present, quantizers = read_widths(attachment), attachment.quantizers
    widths = {}
    for name, bits in present.items():
        learns = name in quantizers and quantizers[name].mode == "learning"
        widths[name] = quantizers[name].bits if learns else (bits,)
    return widths
