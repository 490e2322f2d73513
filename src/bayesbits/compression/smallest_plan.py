"""The smallest cost that a network can reach under its spec, and the error for a budget below it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from bayesbits.compression.attachment import Attachment
from bayesbits.compression.budget import Budget
from bayesbits.compression.fastest_widths import fastest_widths, least_ms
from bayesbits.compression.joint_limits import contradiction, plan_within, undecided
from bayesbits.compression.planning import channel_logits, channels_of, decided_groups, make_plan
from bayesbits.compression.widths_within import UndecidedError
from bayesbits.cost import Cost, LayerCost
from bayesbits.cost.latency import lacking
from bayesbits.records.latency_table import LatencyTable
from bayesbits.records.plan import FLOAT_BITS, Plan
from bayesbits.records.topology import Layer

_PARTS = (1.0, 0.5, 0.25, 0.75)  # of the channels, with which networks may be faster than with the fewest
_NAMED = 3  # layers in an error
_EXACT = 1 - 1e-9  # sums in another order differ by less


class BudgetError(ValueError):
    """A budget cannot be reached. Public as `bayesbits.BudgetError`; the message says what holds the cost up."""


def smallest_plan(attachment: Attachment, part: float = 0.0) -> Plan:
    """The plan with the narrowest widths and the fewest channels that the spec and its rules allow.

    Of every group as many channels stay as have to, those with the largest logits, in all layers that make them: a
    search may still find that a whole branch beside a residual connection can go. With `part` at least this part of
    the channels of every group stays.
    """
    bits = {}
    for name, quantizer in attachment.quantizers.items():
        if quantizer.mode != "off":
            bits[name] = quantizer.bits[0] if quantizer.mode == "learning" else quantizer.effective_bits()
    kept = {
        name: gate.by_gate(gate.kept()).tolist() if gate.fixed else [True] * gate.gates.logits.numel()
        for name, gate in attachment.channel_gates.items()
    }
    logits = channel_logits(attachment)
    for entry in decided_groups(attachment, logits):
        strongest = {channel: logits[name][index] for channel, (name, index) in entry.strongest.items()}
        channels = sorted(entry.group.channels, key=lambda channel: -strongest[channel])
        least = max(1, math.ceil(part * entry.group.size))
        for channel in channels[entry.allowed(least, attachment.spec.channel_multiple) :]:
            for name, index in entry.makers[channel]:
                kept[name][index] = False
    return make_plan(attachment, bits, channels_of(attachment, kept))


def fastest_plan(attachment: Attachment, table: LatencyTable) -> Plan:
    """The fastest of the plans with the fewest channels, or with all of them, and any widths that the spec allows.

    Layers of a few channels can be faster in float, and a tensor in float is faster than one of 16 bits. Fewer channels
    take no more time, unless layers that are faster together save less with them.
    """
    smallest = smallest_plan(attachment)
    whole = replace(smallest, kept={n: k for n, k in smallest.kept.items() if attachment.channel_gates[n].fixed})
    plans = [fastest_widths(attachment, table, plan) for plan in (smallest, whole)]
    return min(plans, key=lambda plan: attachment.cost_model.count(plan, table).latency_ms or 0.0)


def reachable_plan(attachment: Attachment, budget: Budget) -> Plan:
    """A plan within the budget, with as few channels as possible. Where there is none, a `BudgetError` says why.

    It names the smallest cost and what holds it up, or the limits that contradict each other.
    """
    if budget.table is not None:
        check_table(attachment, budget.table)
    smallest = smallest_plan(attachment)
    if budget.allows(attachment.cost_model.count(smallest, budget.table)):
        return smallest
    _check_others(attachment, budget, smallest, "the narrowest widths and the fewest channels that the spec allows")
    table, plans = budget.table, [smallest]
    assert table is not None  # the other limits are within reach
    if budget.limits["latency_ms"] < _EXACT * least_ms(attachment, table, smallest, more_channels=True):
        what = "the widths that are fastest by the latency table, and as few channels as the spec allows"
        _refuse(attachment, budget, fastest_plan(attachment, table), "latency_ms", what)
    if _faster_with_more_channels(attachment, table, smallest):
        plans += [smallest_plan(attachment, part) for part in _PARTS]
    return _plan_within(attachment, budget, plans)


def check_reachable(attachment: Attachment, budget: Budget) -> None:
    """Raise the `BudgetError` of `reachable_plan` where no plan is within the budget."""
    reachable_plan(attachment, budget)


def reachable_widths(attachment: Attachment, budget: Budget, narrowest: Plan) -> Plan:
    """The same for methods that remove no channels: `narrowest` is their smallest plan."""
    reachable_plan(attachment, budget)
    if budget.allows(attachment.cost_model.count(narrowest, budget.table)):
        return narrowest
    channels = "and all channels, as this method removes none"
    _check_others(attachment, budget, narrowest, f"the narrowest widths that are allowed, {channels}")
    assert budget.table is not None
    if budget.limits["latency_ms"] < _EXACT * least_ms(attachment, budget.table, narrowest):
        fastest = fastest_widths(attachment, budget.table, narrowest)
        what = f"the widths that are fastest by the latency table, {channels}"
        _refuse(attachment, budget, fastest, "latency_ms", what)
    return _plan_within(attachment, budget, [narrowest])


def _faster_with_more_channels(attachment: Attachment, table: LatencyTable, smallest: Plan) -> bool:
    """Whether the overhead falls anywhere with more channels; the time of a layer never does."""
    model = attachment.cost_model.latency_model(table)
    inputs, _ = attachment.cost_model.channel_counts(smallest)
    return bool((model.least_overheads(inputs) < model.kind_overheads(inputs)).any())


def _plan_within(attachment: Attachment, budget: Budget, plans: Sequence[Plan]) -> Plan:
    try:
        found = plan_within(attachment, budget, plans)
    except UndecidedError:
        raise BudgetError(undecided(attachment, budget, plans)) from None
    if found is None:
        raise BudgetError(contradiction(attachment, budget, plans))
    return found


def _check_others(attachment: Attachment, budget: Budget, smallest: Plan, what: str) -> None:
    """Refuse a budget where the narrowest widths are above a limit that is not one of milliseconds."""
    cost = attachment.cost_model.count(smallest, budget.table)
    for name, limit in budget.limits.items():
        if name != "latency_ms" and getattr(cost, name) > limit:
            _refuse(attachment, budget, smallest, name, what)


def _refuse(attachment: Attachment, budget: Budget, plan: Plan, broken: str, what: str) -> NoReturn:
    cost = attachment.cost_model.count(plan, budget.table)
    parts = _largest_parts(attachment, cost, broken)
    raise BudgetError(
        f"the budget of {budget} cannot be reached: with {what}, the network costs {budget.least(cost)}. Most "
        f"of it is {parts}. "
        "Raise the budget, or allow narrower widths (Spec.bits, Spec.input_bits, rules) or fewer channels (Spec.prune)"
    )


def check_table(attachment: Attachment, table: LatencyTable) -> None:
    """Raise a ValueError where a latency table is of another network, or lacks widths of the spec."""
    attachment.cost_model.latency_model(table)  # checks that it is this network's
    lacks = lacking(table, attachment.search_space.widths, attachment.topology)
    if lacks is not None:
        raise ValueError(
            f"the latency table does not have all widths of the spec: it has {lacks}. Measure with the same spec, or "
            "leave such widths out (Spec.bits, rules)"
        )


def _largest_parts(attachment: Attachment, cost: Cost, limit: str) -> str:
    """The layers that cost most, with their part in percent and the reason; and what is outside of the layers."""
    name = limit if limit in ("weight_bytes", "latency_ms") else "bops"
    total = getattr(cost, name)
    parts = [
        (getattr(layer, name) / total, f"{layer.name or 'the only layer'} ({{:.0f}}%: {_reason(attachment, layer)})")
        for layer in cost.layers
    ]
    if name != "latency_ms":
        parts += [(getattr(part, name) / total, f"{part.name} ({{:.0f}}%: {part.bits} bits)") for part in cost.tables]
    if name == "bops":
        parts += [
            (one.bops / total, f"{one.name} ({{:.0f}}%: operands at {one.left_bits} and {one.right_bits} bits)")
            for one in cost.products
        ]
    other = total - sum(getattr(part, name, 0) for part in cost.parts)  # tables and products have no milliseconds
    words = "what is outside of the layers" if name == "latency_ms" else "what stays in float outside of the layers"
    parts.append((other / total, f"{words} ({{:.0f}}%)"))
    parts.sort(key=lambda part: -part[0])
    return ", ".join(text.format(100 * share) for share, text in parts[:_NAMED] if share > 0)


def _reason(attachment: Attachment, cost: LayerCost) -> str:
    """The widths and channels of a layer, and what does not let them be fewer."""
    topology, space = attachment.topology, attachment.search_space
    layer = topology.layer(cost.name)
    words = []
    for what, tensor, bits in (
        ("weight", layer.parameter, cost.weight_bits),
        ("input", layer.activation, cost.activation_bits),
    ):
        fixed = space.widths.get(tensor, (FLOAT_BITS,)) == (bits,)
        words.append(f"{what} {'fixed at' if fixed else 'at'} {bits} bits")
    words.append(f"{cost.kept_out} of {len(layer.out_channels)} channels{_why_kept(attachment, layer)}")
    return ", ".join(words)


def _why_kept(attachment: Attachment, layer: Layer) -> str:
    if not layer.deciding or layer.name in attachment.channel_gates:
        least = attachment.search_space.min_channels.get(layer.name)
        return "" if least is None else f", as a rule keeps {least}"
    reason = next((r for c in layer.out_channels if (r := attachment.topology.group_of(c).reason) is not None), None)
    if reason is None:
        reason = "Spec.prune is False" if not attachment.spec.prune else "a rule keeps them"
    return f", as {reason}" if layer.name not in attachment.topology.output_layers else " of the output"
