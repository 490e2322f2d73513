"""The integer program of the solver: a width for every tensor, with the least sum of scores within a budget.

    minimize    the sum of score[t, b] x[t, b]
    subject to  sum over b of x[t, b] = 1                                          for every tensor t
                sum over a of y[l, w, a] = x[weight of l, w]                       for every layer l and width w
                sum over w of y[l, w, a] = x[input of l, a]                        for every layer l and width a
                (and the same for products of two activations, with their two operands)
                sum of cost[l, w, a] y[l, w, a] + sum of cost[t, b] x[t, b] + other costs <= limit
                                                                                   for every limit of the budget

x[t, b] is 1 where the tensor t has b bits, and 0 elsewhere. Bit operations are products of two widths, so that every
layer has a y for each pair of widths, which is then the product of two x and needs no bounds of its own: tensors that
layers share couple their pairs. cost[t, b] are the bytes of tables of embeddings and of weights of recurrent layers, or
the bit operations of the latter. All costs are those that `CostModel.count` counts, for a layer those of plans with the
widths of each pair.

Predicted milliseconds also depend on whether the tensor that a layer emits has more than 8 bits: y then has this as a
third index, with equations like those of the two widths. cost[t, b] is what an activation adds to the overhead. The
milliseconds are the larger of two sums (`cost.latency_parts`), which are two limits of the program.
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
from bayesbits.compression.smallest_plan import reachable_widths
from bayesbits.cost.cost import Cost
from bayesbits.cost.latency import MOST_SAVED
from bayesbits.cost.latency_parts import LatencyParts
from bayesbits.cost.size import packed_bytes
from bayesbits.records.latency_table import NARROW_BITS
from bayesbits.records.plan import FLOAT_BITS, Plan
from bayesbits.records.topology import Table
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
        """Raises a `BudgetError` where no widths are within the budget with all channels that are left."""
        require_packages("the solver", "scipy")
        self.attachment, self.budget = attachment, budget
        self._kept = {
            name: tuple(index for index, stays in enumerate(gate.kept().tolist()) if stays)
            for name, gate in attachment.channel_gates.items()
            if gate.fixed and not bool(gate.kept().all())
        }
        self.widths = allowed_widths(attachment)
        self._reachable = reachable_widths(attachment, budget, self._narrowest())

    def solve(self, scores: Scores) -> Plan:
        """The plan with the least sum of scores; its counted cost is within the budget."""
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
        return self._reachable  # rounding leaves the program without a solution

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
        number = len(columns) + len(self._products)
        price, most = np.zeros(number), np.ones(number)
        for place, (name, bits) in enumerate(columns):
            score = scores.get(name, {}).get(bits, 0.0) / unit
            price[place], most[place] = min(score, 1.0), 1.0 if score <= 1.0 + 1e-9 else 0.0
        constraints = [LinearConstraint(equations, totals, totals)]
        for name, limit in self.budget.limits.items():
            for row, rest in self._latencies() if name == "latency_ms" else [self._costs(name)]:
                constraints.append(LinearConstraint(row[None] / limit, -np.inf, 1.0 - lowered - rest / limit))
        integrality = np.concatenate([np.ones(len(columns)), np.zeros(len(self._products))])
        result = milp(
            price, integrality=integrality, bounds=Bounds(0.0, most), constraints=constraints,
            options={"time_limit": SECONDS},
        )  # fmt: skip
        if result.x is None:
            return None
        return {name: bits for place, (name, bits) in enumerate(columns) if result.x[place] > 0.5}

    @cached_property
    def _products(self) -> list[tuple[int, tuple[int, ...]]]:
        """A column y for every layer or product, by its number, and every choice of its factors."""
        return [
            (number, choice)
            for number, factors in enumerate(self._factors)
            for choice in product(*(dict.fromkeys(of_width.values()) for _, of_width in factors))
        ]

    @cached_property
    def _factors(self) -> list[list[tuple[str, dict[int, int]]]]:
        """The tensors that the columns of a layer or product depend on, and the choice that belongs to each width: the
        width itself, and for an emitted tensor whether it has more than 8 bits."""
        factors = [[(name, {bits: bits for bits in self.widths[name]}) for name in both] for both in self._multiplied]
        for own, (_, _, emitted) in zip(factors, self._latency.tensors if self._latency else (), strict=False):
            if emitted is not None and emitted in self.widths:
                own.append((emitted, {bits: int(bits > NARROW_BITS) for bits in self.widths[emitted]}))
        return factors

    @cached_property
    def _latency(self) -> LatencyParts | None:
        """The milliseconds of all widths; None where they are not limited."""
        table = self.budget.table
        return None if table is None else LatencyParts.of(self.attachment.cost_model, table, self._narrowest())

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
        shape = (max(rows) + 1, len(columns) + len(self._products))
        totals = np.zeros(shape[0])
        totals[: len(self.widths)] = 1.0
        return columns, coo_array((values, (rows, places)), shape=shape).tocsr(), totals

    def _equations(self, place_of: Mapping[tuple[str, int], int]) -> Iterator[tuple[int, int, float]]:
        """Row, column and factor: first the sums over widths, a row for each tensor; then the sums over products."""
        for row, (name, own) in enumerate(self.widths.items()):
            yield from ((row, place_of[name, bits], 1.0) for bits in own)
        products: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        for place, (number, choice) in enumerate(self._products):
            products.setdefault(number, []).append((len(place_of) + place, choice))
        row = len(self.widths)
        for number, factors in enumerate(self._factors):
            for side, (name, of_width) in enumerate(factors):
                for chosen in dict.fromkeys(of_width.values()):
                    yield from ((row, place_of[name, bits], -1.0) for bits, one in of_width.items() if one == chosen)
                    yield from ((row, place, 1.0) for place, choice in products[number] if choice[side] == chosen)
                    row += 1

    @cached_property
    def _counted(self) -> dict[tuple[int, int, int], Cost]:
        """For every layer or product and pair of widths a cost in which it has these widths."""
        topology, counted = self.attachment.topology, {}
        first = {*topology.parameter_tensors, *(one.left for one in topology.products)}
        every = sorted({bits for own in self.widths.values() for bits in own})
        for weight_bits, input_bits in product(every, every):
            wanted = {name: weight_bits if name in first else input_bits for name in self.widths}
            bits = {name: wanted[name] if wanted[name] in own else own[0] for name, own in self.widths.items()}
            cost = self.attachment.cost_model.count(self._plan(bits), self.budget.table)
            for number, both in enumerate(self._multiplied):
                counted[number, bits[both[0]], bits[both[1]]] = cost
        return counted

    def _costs(self, limit: str) -> tuple[np.ndarray, float]:
        """What every column adds to a cost, and what is added beside them; the units are those of the limit."""
        name = "bops" if limit == "relative_bops" else limit
        unit = self.attachment.cost_model.dense().bops / 100 if limit == "relative_bops" else 1.0
        columns = self._structure[0]
        tables = self.attachment.topology.table_tensors

        def of_table(table: Table, bits: int) -> int:
            return packed_bytes(table.elements, bits) if name == "weight_bytes" else table.macs * bits * FLOAT_BITS

        alone = [of_table(tables[tensor], bits) if tensor in tables else 0 for tensor, bits in columns]
        row = [_parts(self._counted[number, choice[0], choice[1]], name)[number] for number, choice in self._products]
        cost = next(iter(self._counted.values()))
        return np.array([*alone, *row], dtype=float) / unit, (getattr(cost, name) - sum(_parts(cost, name))) / unit

    def _latencies(self) -> list[tuple[np.ndarray, float]]:
        """The same for milliseconds, of the two sums of which the larger one counts."""
        latency, columns = self._latency, self._structure[0]
        assert latency is not None
        row = np.zeros(len(columns) + len(self._products))
        for place, (number, choice) in enumerate(self._products):
            if number < len(latency.tensors):
                weight, activation, emitted = (*choice, 1)[:3]
                row[len(columns) + place] = latency.layer_ms(number, weight, activation, FLOAT_BITS * emitted)
        half = (1 - MOST_SAVED) * row
        for number, (_, input_name, _) in enumerate(latency.tensors):
            for place, (name, bits) in enumerate(columns):
                if name == input_name:
                    row[place] += latency.overhead_ms(number, bits)
        return [(row, 0.0), (half, 0.0)]


def _parts(cost: Cost, name: str) -> list[float]:
    """What every layer, then every product, then every table adds to a cost; not each of them has bytes or times."""
    return [getattr(part, name, 0.0) for part in (*cost.layers, *cost.products, *cost.tables)]


def allowed_widths(attachment: Attachment) -> dict[str, tuple[int, ...]]:
    """The widths of every tensor, increasing: those that its rules allow where it learns, and else the present one."""
    present, quantizers = read_widths(attachment), attachment.quantizers
    widths = {}
    for name, bits in present.items():
        learns = name in quantizers and quantizers[name].mode == "learning"
        widths[name] = quantizers[name].bits if learns else (bits,)
    return widths
