"""The verdict on a run: one plain sentence about its cost and its metric, and what to do where something went wrong."""

from __future__ import annotations

from collections import Counter

from bayesbits.compression.budget import Budget
from bayesbits.compression.compressor import Compressor
from bayesbits.compression.planning import make_plan
from bayesbits.cost import Cost
from bayesbits.cost.bops import FLOAT_BOPS
from bayesbits.recipes.metrics import Score
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Topology

_MANY_POINTS = 5.0  # lost by the main metric, in percent, that deserve a warning
_MOSTLY = 0.5  # the part of the remaining bit operations that deserves a warning where it is in float


def verdict_of(
    compressor: Compressor, plan: Plan, cost: Cost, scores: tuple[Score, ...], budget: Budget | None = None
) -> str:
    """The sentence about a final plan, its cost and its metrics; with a budget, whether it is within it."""
    if budget is not None:
        within = "within" if budget.allows(cost) else "not within"
        first = f"{within} the budget of {budget}: {budget.describe(cost)}"
    elif no_gate_closed(compressor, plan):
        first = f"no gate closed: {cost.relative_bops:.3g}% of the bit operations are left"
    else:
        first = f"{cost.relative_bops:.3g}% of the bit operations are left"
    needless = "" if budget is None else limits_nothing(compressor, budget)
    parts = [f"{first}{_change(scores)}", needless, _lost(scores), _in_float(compressor.topology, cost)]
    return "; ".join(part for part in parts if part)


def limits_nothing(compressor: Compressor, budget: Budget) -> str:
    """A sentence where even the widest widths and all channels are within a budget; otherwise nothing."""
    attachment = compressor.attachment
    widest = {name: widths[-1] for name, widths in attachment.search_space.widths.items()}
    cost = attachment.cost_model.count(make_plan(attachment, widest, {}), budget.table)
    if not budget.allows(cost):
        return ""
    return f"this budget limits nothing, as the widest widths and all channels cost {budget.describe(cost)}: lower it"


def no_gate_closed(compressor: Compressor, plan: Plan) -> bool:
    """Whether something could be learned, and the plan has the widest width everywhere and all channels."""
    attachment = compressor.attachment
    learned = {name: widths for name, widths in attachment.search_space.widths.items() if len(widths) > 1}
    if not learned and not attachment.channel_gates:
        return False
    return not plan.kept and all(plan.bits[name] == widths[-1] for name, widths in learned.items())


def _change(scores: tuple[Score, ...]) -> str:
    """The change of the main metric, or its value where there is no float network."""
    if not scores:
        return ""
    score = scores[0]
    if score.float_value is None:
        return f", {score.name} {score.text}"
    difference = score.value - score.float_value
    return f", {score.name} {f'{difference:+.2f} points' if score.unit == '%' else f'{difference:+.3g}{score.unit}'}"


def _lost(scores: tuple[Score, ...]) -> str:
    if not scores or scores[0].unit != "%" or scores[0].float_value is None:
        return ""
    lost = scores[0].float_value - scores[0].value
    if lost < _MANY_POINTS:
        return ""
    return (
        f"{lost:.0f} points lost: train longer (search.epochs), fine-tune longer (finetune.epochs), or allow more (a "
        "larger budget, a smaller search.mu)"
    )


def _in_float(topology: Topology, cost: Cost) -> str:
    """What stays in float, where that is most of what the network still costs."""
    share = cost.unsupported_macs * FLOAT_BOPS / max(1, cost.bops)
    if share < _MOSTLY:
        return ""
    macs: Counter[str] = Counter()
    for entry in topology.unsupported:
        macs[entry.what] += entry.macs
    kinds = ", ".join(what for what, count in macs.most_common(3) if count)
    return f"{100 * share:.0f}% of these bit operations stay in float: {kinds}"
