"""Limits that only a plan in between meets, and limits that contradict each other."""

import random
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bayesbits as bb
from bayesbits.compression import joint_limits
from bayesbits.compression.projection import project
from bayesbits.compression.smallest_plan import check_reachable, smallest_plan
from tests.compression.limit_networks import compressor, every_plan, random_limits, random_table


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0, 1]))
def test_a_budget_is_reached_if_and_only_if_a_plan_with_the_fewest_channels_is_within_it(seed, number):
    """The overheads are at least zero here and grow with channels, so that the fewest channels are the fastest."""
    attachment, choose = compressor(number).attachment, random.Random(seed)
    table = random_table(attachment, seed, 0.0)
    costs = [
        attachment.cost_model.count(plan, table)
        for plan in every_plan(attachment, dict(smallest_plan(attachment).kept))
    ]
    for _ in range(12):
        budget = bb.Budget(**random_limits(choose, costs), table=table)
        if any(map(budget.allows, costs)):
            check_reachable(attachment, budget)
            assert budget.allows(attachment.cost_model.count(project(attachment, budget), table))
        else:
            with pytest.raises(bb.BudgetError):
                check_reachable(attachment, budget)


def contradictory():
    """The limits of two plans, each of which is the best under one of them."""
    attachment = compressor(1).attachment
    table = random_table(attachment, 5, 0.0)
    kept = dict(smallest_plan(attachment).kept)
    costs = [attachment.cost_model.count(plan, table) for plan in every_plan(attachment, kept)]
    fastest, narrowest = min(costs, key=lambda cost: cost.latency_ms), min(costs, key=lambda cost: cost.relative_bops)
    assert fastest.relative_bops > 1.1 * narrowest.relative_bops
    assert narrowest.latency_ms > 1.1 * fastest.latency_ms
    budget = bb.Budget(latency_ms=1.01 * fastest.latency_ms, relative_bops=1.01 * narrowest.relative_bops, table=table)
    return attachment, costs, budget


def test_the_error_says_how_far_each_limit_has_to_be_raised():
    attachment, costs, budget = contradictory()
    with pytest.raises(
        bb.BudgetError, match="contradict each other: each of them can be reached, but not all"
    ) as raised:
        check_reachable(attachment, budget)
    found = re.search(r"Raise \S+ bops to (\S+)% bops, or \S+ ms to (\S+) ms", str(raised.value))
    assert found is not None
    for name, text in zip(("relative_bops", "latency_ms"), found.groups(), strict=True):
        others = {other: limit for other, limit in budget.limits.items() if other != name}
        least = min(getattr(c, name) for c in costs if all(getattr(c, o) <= limit for o, limit in others.items()))
        assert least <= float(text) <= 1.004 * least
        enough = bb.Budget(**{**budget.limits, name: float(text)}, table=budget.table)
        check_reachable(attachment, enough)
        assert enough.allows(attachment.cost_model.count(project(attachment, enough), budget.table))


def test_what_was_not_found_out_is_not_called_a_contradiction(monkeypatch):
    attachment, _, budget = contradictory()
    found = joint_limits.widths_within
    monkeypatch.setattr(joint_limits, "widths_within", lambda *given: found(*given[:3], 0))
    with pytest.raises(
        bb.BudgetError, match=r"no plan within the budget of .* was found: .* Raise more than one of them"
    ):
        check_reachable(attachment, budget)


def test_a_search_with_contradictory_limits_is_refused_before_its_first_step():
    _, _, budget = contradictory()

    def never(*_):
        raise AssertionError("a step was taken")

    data = [(torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64))]
    with pytest.raises(bb.BudgetError, match="contradict each other"):
        bb.search(compressor(1), data, never, bb.SearchConfig(epochs=1, budget=budget))
