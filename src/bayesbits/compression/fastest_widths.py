"""The widths with which a network is fastest by a latency table, and the least milliseconds that it can have.

Widths of one kind (up to 8 bits, up to 24, above) are equally fast, so that every tensor has a choice of three at most.
The milliseconds are a sum of small tables (`cost.latency_parts`), each of them over the kinds of two or three tensors.
The least sum is found exactly by eliminating tensors one after the other, as dynamic programming does: all tables with
a tensor become one table over its neighbors, which says what is least for each of their choices.

What is no sum is the end of an overhead below zero: latency = max(layers + overhead, layers / 2). For each weight t
from 0 to 1 the sum (1 - t) (layers + overhead) + t layers / 2 is no more than that, and its least value is a lower
bound. The largest of these bounds is found by bisection. Where an end of [0, 1] has it, as it is unless the overhead
takes half of the layers' time away, the widths are exactly the fastest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from bayesbits.compression.attachment import Attachment
from bayesbits.cost.latency import MOST_SAVED
from bayesbits.cost.latency_parts import LatencyParts, width_in
from bayesbits.records.latency_table import LatencyTable, kind_of
from bayesbits.records.plan import Plan

_HALVINGS = 40


def fastest_widths(attachment: Attachment, table: LatencyTable, plan: Plan) -> Plan:
    """The plan with the channels of another one, and the fastest widths; of equally fast ones the narrowest."""
    return _fastest(attachment, plan, LatencyParts.of(attachment.cost_model, table, plan))[1]


def least_ms(attachment: Attachment, table: LatencyTable, plan: Plan, *, more_channels: bool = False) -> float:
    """A lower bound on the milliseconds of all widths with the channels of a plan, or with these or more."""
    parts = LatencyParts.of(attachment.cost_model, table, plan, more_channels=more_channels)
    return _fastest(attachment, plan, parts)[0]


def _fastest(attachment: Attachment, plan: Plan, parts: LatencyParts) -> tuple[float, Plan]:
    """The largest lower bound, and the fastest plan that was found with it."""
    choices = _choices(attachment, plan)
    terms = [_layer_terms(parts, number, choices) for number in range(len(parts.tensors))]
    bound, found, fastest = 0.0, plan, float("inf")
    low, high = 0.0, 1.0
    for weight in (0.0, 1.0, *[None] * _HALVINGS):
        t = (low + high) / 2 if weight is None else weight
        factors = (1 - t + t * (1 - MOST_SAVED), 1 - t)
        least, chosen = _least_sum([_Term(names, factors[0] * a + factors[1] * b) for names, a, b in terms])
        bits = {**plan.bits, **{name: choices[name][index] for name, index in chosen.items()}}
        layers, overhead = _sums(parts, bits)
        bound = max(bound, least)
        if (total := parts.total_ms(layers, overhead)) < fastest:
            found, fastest = replace(plan, bits=bits), total
        more = (1 - MOST_SAVED) * layers - (layers + overhead)  # what the sum gains where t grows
        if (weight == 0.0 and more <= 0) or (weight == 1.0 and more >= 0):
            break
        if weight is None:
            low, high = (t, high) if more > 0 else (low, t)
    return bound, found


def _choices(attachment: Attachment, plan: Plan) -> dict[str, tuple[int, ...]]:
    """For every tensor of a plan the narrowest width of each kind, the narrowest kind first."""
    quantizers, space = attachment.quantizers, attachment.search_space
    choices = {}
    for name, bits in plan.bits.items():
        learns = bits > 0 and name in quantizers and quantizers[name].mode == "learning"
        widths = space.widths[name] if learns else (bits,)
        choices[name] = tuple({kind_of(width): width for width in sorted(widths, reverse=True)}.values())[::-1]
    return choices


def _layer_terms(
    parts: LatencyParts, number: int, choices: Mapping[str, tuple[int, ...]]
) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """The tensors of a layer, and over their choices its milliseconds and its part of the overhead."""
    own = parts.tensors[number]
    names = tuple(dict.fromkeys(name for name in own if name is not None and name in choices))
    sizes = [len(choices[name]) for name in names]
    layers, overheads = torch.empty(sizes, dtype=torch.float64), torch.empty(sizes, dtype=torch.float64)
    for index in product(*map(range, sizes)):
        bits = {name: choices[name][place] for name, place in zip(names, index, strict=True)}
        weight, activation, emitted = (width_in(bits, name) for name in own)
        layers[index] = parts.layer_ms(number, weight, activation, emitted)
        overheads[index] = parts.overhead_ms(number, activation)
    return names, layers, overheads


def _sums(parts: LatencyParts, bits: dict[str, int]) -> tuple[float, float]:
    """The milliseconds of all layers, and the overhead."""
    widths = [[width_in(bits, name) for name in own] for own in parts.tensors]
    layers = sum(parts.layer_ms(number, *own) for number, own in enumerate(widths))
    return layers, sum(parts.overhead_ms(number, own[1]) for number, own in enumerate(widths))


@dataclass(frozen=True)
class _Term:
    """A table over the choices of some variables, one axis for each."""

    names: tuple[str, ...]
    values: Tensor

    def over(self, scope: Sequence[str]) -> Tensor:
        """The table with the axes of `scope`, of size 1 for variables that it does not depend on."""
        order = [self.names.index(name) for name in scope if name in self.names]
        sizes = [self.values.shape[self.names.index(name)] if name in self.names else 1 for name in scope]
        return self.values.permute(order).reshape(sizes)


def _least_sum(terms: Sequence[_Term]) -> tuple[float, dict[str, int]]:
    """The least sum of tables, and the choice of every variable; of equal ones the first."""
    terms, steps = list(terms), []
    left = dict.fromkeys(name for term in terms for name in term.names)
    while left:
        scopes = {name: {other for term in terms if name in term.names for other in term.names} for name in left}
        name = min(left, key=lambda one: len(scopes[one]))
        scope = (name, *sorted(scopes[name] - {name}))
        table = torch.as_tensor(sum(term.over(scope) for term in terms if name in term.names))
        best = table.argmin(0)
        terms = [term for term in terms if name not in term.names]
        terms.append(_Term(scope[1:], table.min(0).values))
        steps.append((name, scope[1:], best))
        del left[name]
    chosen: dict[str, int] = {}
    for name, others, best in reversed(steps):
        chosen[name] = int(best[tuple(chosen[other] for other in others)])
    return sum(term.values.item() for term in terms), chosen
