"""The widths with which a network is fastest by a latency table, and the least milliseconds that it can have.

Widths of one kind (up to 8 bits, up to 24, above) are equally fast, so that every tensor has a choice of three at most.
The milliseconds are a sum of small tables (`cost.latency_parts`), each of them over the kinds of two or three tensors.
The least sum is found exactly (`compression.table_sums`).

What is no sum is the end of an overhead below zero: latency = max(layers + overhead, layers / 2). For each weight t
from 0 to 1 the sum (1 - t) (layers + overhead) + t layers / 2 is no more than that, and its least value is a lower
bound. The largest of these bounds is found by bisection. Where an end of [0, 1] has it, as it is unless the overhead
takes half of the layers' time away, the widths are exactly the fastest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import numpy as np

from bayesbits.compression.attachment import Attachment
from bayesbits.compression.table_sums import Table, TableSum
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
    choices = width_choices(attachment, plan)
    terms = [layer_terms(parts, number, choices) for number in range(len(parts.tensors))]
    tables = TableSum([names for names, _, _ in terms], {name: len(own) for name, own in choices.items()})
    bound, found, fastest = 0.0, plan, float("inf")
    low, high = 0.0, 1.0
    for weight in (0.0, 1.0, *[None] * _HALVINGS):
        t = (low + high) / 2 if weight is None else weight
        factors = (1 - t + t * (1 - MOST_SAVED), 1 - t)
        least, chosen = tables.least([factors[0] * layer + factors[1] * overhead for _, layer, overhead in terms])
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


def width_choices(attachment: Attachment, plan: Plan) -> dict[str, tuple[int, ...]]:
    """For every tensor of a plan the narrowest width of each kind, the narrowest kind first."""
    quantizers, space = attachment.quantizers, attachment.search_space
    choices = {}
    for name, bits in plan.bits.items():
        learns = bits > 0 and name in quantizers and quantizers[name].mode == "learning"
        widths = space.widths[name] if learns else (bits,)
        choices[name] = tuple({kind_of(width): width for width in sorted(widths, reverse=True)}.values())[::-1]
    return choices


def layer_terms(
    parts: LatencyParts, number: int, choices: Mapping[str, tuple[int, ...]]
) -> tuple[tuple[str, ...], Table, Table]:
    """The tensors of a layer, and over their choices its milliseconds and its part of the overhead."""
    own = parts.tensors[number]
    names = tuple(dict.fromkeys(name for name in own if name is not None and name in choices))
    sizes = [len(choices[name]) for name in names]
    layers, overheads = np.empty(sizes), np.empty(sizes)
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
