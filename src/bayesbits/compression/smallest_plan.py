"""The smallest cost that a network can reach under its spec, and the error for a budget below it."""

from __future__ import annotations

from bayesbits.compression.attachment import Attachment
from bayesbits.compression.budget import Budget
from bayesbits.compression.planning import channel_logits, decided_groups, make_plan
from bayesbits.cost import Cost, LayerCost
from bayesbits.cost.bops import FLOAT_BITS, FLOAT_BOPS
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Layer

_NAMED = 3  # layers in an error


class BudgetError(ValueError):
    """A budget cannot be reached. Public as `bayesbits.BudgetError`; the message says what holds the cost up."""


def smallest_plan(attachment: Attachment) -> Plan:
    """The plan with the narrowest widths and the fewest channels that the spec and its rules allow.

    Of every group as many channels stay as have to, in all layers that make them: a search may still find that a whole
    branch beside a residual connection can go.
    """
    bits = {}
    for name, quantizer in attachment.quantizers.items():
        if quantizer.mode != "off":
            bits[name] = quantizer.bits[0] if quantizer.mode == "learning" else quantizer.effective_bits()
    kept = {
        name: gate.kept().tolist() if gate.fixed else [True] * gate.gates.logits.numel()
        for name, gate in attachment.channel_gates.items()
    }
    for entry in decided_groups(attachment, channel_logits(attachment)):
        for channel in entry.group.channels[entry.allowed(1, attachment.spec.channel_multiple) :]:
            for name, index in entry.makers[channel]:
                kept[name][index] = False
    indices = {name: tuple(i for i, stays in enumerate(mask) if stays) for name, mask in kept.items() if not all(mask)}
    return make_plan(attachment, bits, indices)


def check_reachable(attachment: Attachment, budget: Budget) -> None:
    """Raise a `BudgetError` that names the smallest cost, and what holds it up, if the budget is below that."""
    _check_plan(
        attachment,
        budget,
        smallest_plan(attachment),
        "the narrowest widths and the fewest channels that the spec allows",
    )


def check_widths_reachable(attachment: Attachment, budget: Budget, narrowest: Plan) -> None:
    """The same for methods that remove no channels: `narrowest` is their smallest plan."""
    check_reachable(attachment, budget)
    what = "the narrowest widths that are allowed, and all channels, as this method removes none"
    _check_plan(attachment, budget, narrowest, what)


def _check_plan(attachment: Attachment, budget: Budget, plan: Plan, what: str) -> None:
    smallest = attachment.cost_model.count(plan)
    if budget.allows(smallest):
        return
    broken = next(name for name, limit in budget.limits.items() if getattr(smallest, name) > limit)
    parts = _largest_parts(attachment, smallest, broken)
    raise BudgetError(
        f"the budget of {budget} cannot be reached: with {what}, the network costs {budget.describe(smallest)}. Most "
        f"of it is {parts}. "
        "Raise the budget, or allow narrower widths (Spec.bits, Spec.input_bits, rules) or fewer channels (Spec.prune)"
    )


def _largest_parts(attachment: Attachment, cost: Cost, limit: str) -> str:
    """The layers that cost most, with their part in percent and the reason; and what is outside of the layers."""
    name = "weight_bytes" if limit == "weight_bytes" else "bops"
    total = getattr(cost, name)
    parts = [
        (getattr(layer, name) / total, f"{layer.name or 'the only layer'} ({{:.0f}}%: {_reason(attachment, layer)})")
        for layer in cost.layers
    ]
    other = total - sum(getattr(layer, name) for layer in cost.layers)
    if name == "bops":
        other = cost.unsupported_macs * FLOAT_BOPS
    parts.append((other / total, "what stays in float outside of the layers ({:.0f}%)"))
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
    if layer.depthwise or layer.name in attachment.channel_gates:
        least = attachment.search_space.min_channels.get(layer.name)
        return "" if least is None else f", as a rule keeps {least}"
    reason = next((r for c in layer.out_channels if (r := attachment.topology.group_of(c).reason) is not None), None)
    if reason is None:
        reason = "Spec.prune is False" if not attachment.spec.prune else "a rule keeps them"
    return f", as {reason}" if layer.name not in attachment.topology.output_layers else " of the output"
