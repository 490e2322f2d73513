"""The costs of all widths under the limits of a budget, with the channels of one plan, as sums of small tables.

    cost[limit; widths] / limit = rest[limit] + sum over terms of table[term; limit, widths of its tensors]

Bit operations are products of the widths of a layer's weight and input; bytes depend on one weight each; milliseconds
are the larger of two sums (`cost.latency_parts`), each of which is a limit of its own here. Of the widths of a tensor
the narrowest of each kind that the runtime knows is enough (`fastest_widths.width_choices`): another width of that kind
is as fast, and costs more of everything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bayesbits.compression.attachment import Attachment
from bayesbits.compression.budget import Budget
from bayesbits.compression.fastest_widths import layer_terms, width_choices
from bayesbits.compression.table_sums import Table
from bayesbits.cost.cost import Cost
from bayesbits.cost.latency import MOST_SAVED
from bayesbits.cost.latency_parts import LatencyParts
from bayesbits.records.plan import Plan


@dataclass(frozen=True)
class Term:
    """What the choices of a few tensors add to the cost under every limit."""

    names: tuple[str, ...]
    table: Table
    """[limits, and the choices of each tensor]"""


@dataclass(frozen=True)
class _Sum:
    """The cost under one limit: tables over the choices of tensors, and what does not depend on widths."""

    limit: float
    tables: list[tuple[tuple[str, ...], Table]]
    rest: float = 0.0


@dataclass(frozen=True)
class LimitTerms:
    """The terms of all limits; a cost is in parts of its limit, so that 1 is the most."""

    choices: Mapping[str, tuple[int, ...]]
    """The widths of every tensor that are worth a try, increasing."""
    terms: tuple[Term, ...]
    rest: NDArray[np.float64]
    """[limits]: what does not depend on widths."""

    @classmethod
    def of(cls, attachment: Attachment, budget: Budget, plan: Plan) -> LimitTerms:
        """With the channels of a plan."""
        choices = width_choices(attachment, plan)
        tables = attachment.topology.table_tensors  # which take no time: the narrowest width is best
        choices = {name: own[:1] if name in tables else own for name, own in choices.items()}
        plan = replace(plan, bits={**plan.bits, **{name: choices[name][0] for name in tables if name in choices}})
        sums: list[_Sum] = []
        for name, limit in budget.limits.items():
            if name == "latency_ms":
                sums += _milliseconds(attachment, budget, plan, choices)
            elif name == "weight_bytes":
                sums.append(_bytes(attachment, plan, choices, limit))
            else:
                dense = attachment.cost_model.dense().bops
                sums.append(_operations(attachment, plan, choices, limit if name == "bops" else dense * limit / 100))
        return cls(choices, tuple(_merged(sums, choices)), np.array([one.rest / one.limit for one in sums]))

    def costs(self, chosen: Mapping[str, int]) -> NDArray[np.float64]:
        """[limits]: the costs with the chosen widths, given by their place in `choices`."""
        costs = self.rest.copy()
        for term in self.terms:
            costs += np.moveaxis(term.table, 0, -1)[tuple(chosen[name] for name in term.names)]
        return costs


def _merged(sums: Sequence[_Sum], choices: Mapping[str, tuple[int, ...]]) -> Iterator[Term]:
    """One term for all tables over the same tensors, or over some of them."""
    tables = [(number, names, table / one.limit) for number, one in enumerate(sums) for names, table in one.tables]
    tables.sort(key=lambda entry: -len(entry[1]))
    merged: list[Term] = []
    for number, names, table in tables:
        term = next((term for term in merged if set(names) <= set(term.names)), None)
        if term is None:
            term = Term(names, np.zeros((len(sums), *(len(choices[name]) for name in names))))
            merged.append(term)
        own = [name for name in term.names if name in names]
        shape = [len(choices[name]) if name in names else 1 for name in term.names]
        term.table[number] += table.transpose([names.index(name) for name in own]).reshape(shape)
    yield from merged


def _milliseconds(
    attachment: Attachment, budget: Budget, plan: Plan, choices: Mapping[str, tuple[int, ...]]
) -> list[_Sum]:
    """The two sums of which the larger one counts."""
    assert budget.table is not None
    assert budget.latency_ms is not None
    parts = LatencyParts.of(attachment.cost_model, budget.table, plan)
    whole, half = [], []
    for number in range(len(parts.tensors)):
        names, layer, overhead = layer_terms(parts, number, choices)
        whole.append((names, layer + overhead))
        half.append((names, (1 - MOST_SAVED) * layer))
    return [_Sum(budget.latency_ms, whole), _Sum(budget.latency_ms, half)]


def _operations(attachment: Attachment, plan: Plan, choices: Mapping[str, tuple[int, ...]], limit: float) -> _Sum:
    """The bit operations; those of a layer or product are proportional to both of its widths."""
    topology, cost = attachment.topology, attachment.cost_model.count(plan)
    multiplied = [
        (layer.parameter, layer.activation, one.bops, one.weight_bits * one.activation_bits)
        for layer, one in zip(topology.layers, cost.layers, strict=True)
    ]
    multiplied += [
        (layer.left, layer.right, one.bops, one.left_bits * one.right_bits)
        for layer, one in zip(topology.products, cost.products, strict=True)
    ]
    tables: list[tuple[tuple[str, ...], Table]] = []
    for left, right, bops, widths in multiplied:
        each = bops / widths if widths else 0.0
        pairs = np.array([[each * a * b for b in choices[right]] for a in choices[left]])
        if left == right:  # a matrix times itself
            tables.append(((left,), np.diagonal(pairs)))
        else:
            tables.append(((left, right), pairs))
    return _Sum(limit, tables, cost.bops - sum(bops for _, _, bops, _ in multiplied))


def _bytes(attachment: Attachment, plan: Plan, choices: Mapping[str, tuple[int, ...]], limit: float) -> _Sum:
    """The bytes: all weights are counted at each of their widths."""
    counted: list[Cost] = []
    for place in range(max(map(len, choices.values()))):
        bits = {name: own[min(place, len(own) - 1)] for name, own in choices.items()}
        counted.append(attachment.cost_model.count(replace(plan, bits={**plan.bits, **bits})))
    tables: list[tuple[tuple[str, ...], Table]] = []
    for number, layer in enumerate(attachment.topology.layers):
        sizes = [cost.layers[number].weight_bytes for cost in counted[: len(choices[layer.parameter])]]
        tables.append(((layer.parameter,), np.array(sizes, dtype=float)))
    return _Sum(limit, tables, counted[0].weight_bytes - sum(layer.weight_bytes for layer in counted[0].layers))
