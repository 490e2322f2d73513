"""Several limits of a budget at once: a plan that is within all of them, or how far one of them has to be raised.

Each of them may be within reach, bytes with narrow widths and milliseconds with others, and all of them together not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bayesbits.compression.attachment import Attachment
from bayesbits.compression.budget import Budget, counted, least_limit_text, limit_text
from bayesbits.compression.widths_within import MOST_NODES, UndecidedError, widths_within
from bayesbits.records.plan import Plan

_NEAR = 1.002  # how near to the least limit the one in an error is
_HALVINGS = 20
_FEW_NODES = 30  # where an answer that is not the best one will do


def plan_within(
    attachment: Attachment, budget: Budget, plans: Sequence[Plan], most_nodes: int = MOST_NODES
) -> Plan | None:
    """A plan within all limits, with the channels of one of the given plans and any widths that the spec allows.

    None where there is none, and an `UndecidedError` where that is not known. The first plan may take the most work;
    the others are tried in a short time.
    """
    undecided = None
    for number, plan in enumerate(plans):
        try:
            found = widths_within(attachment, budget, plan, min(most_nodes, _FEW_NODES) if number else most_nodes)
        except UndecidedError as error:
            undecided = error
        else:
            if found is not None:
                return found
    if undecided is not None:
        raise undecided
    return None


def contradiction(attachment: Attachment, budget: Budget, plans: Sequence[Plan]) -> str:
    """That the limits contradict each other, and how far each has to be raised if the others stay as they are."""
    return (
        f"the limits of the budget of {budget} contradict each other: each of them can be reached, but not all of them "
        f"with the same plan. Raise {_raised(attachment, budget, plans)}"
    )


def undecided(attachment: Attachment, budget: Budget, plans: Sequence[Plan]) -> str:
    """The same where it is not known whether there is a plan."""
    return (
        f"no plan within the budget of {budget} was found: each of its limits can be reached, and all of them with the "
        f"same plan hardly or not at all. Raise {_raised(attachment, budget, plans)}"
    )


def _raised(attachment: Attachment, budget: Budget, plans: Sequence[Plan]) -> str:
    least = {name: _least_limit(attachment, budget, name, plans) for name in budget.limits}
    raised = [
        f"{limit_text(name, budget.limits[name])} to {least_limit_text(name, value)}"
        for name, value in least.items()
        if value is not None
    ]
    return ", or ".join(raised) or "more than one of them"


def _found(attachment: Attachment, budget: Budget, plans: Sequence[Plan]) -> Plan | None:
    try:
        return plan_within(attachment, budget, plans, _FEW_NODES)
    except UndecidedError:
        return None


def _least_limit(attachment: Attachment, budget: Budget, name: str, plans: Sequence[Plan]) -> float | None:
    """The least that a limit has to be if the others stay, or somewhat more where that takes long to find; None where
    they contradict each other without it."""
    if len(budget.limits) == 1:
        return None
    others: dict[str, Any] = {name: None} | ({"table": None} if name == "latency_ms" else {})
    found = _found(attachment, replace(budget, **others), plans)
    if found is None:
        return None
    low, high = budget.limits[name], counted(budget, attachment.cost_model, found)[name]
    for _ in range(_HALVINGS):
        if high <= _NEAR * low:
            break
        middle = (low * high) ** 0.5
        found = _found(attachment, replace(budget, **{name: middle}), plans)
        low, high = (middle, high) if found is None else (low, counted(budget, attachment.cost_model, found)[name])
    return high
