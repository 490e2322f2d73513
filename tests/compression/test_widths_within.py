"""Widths within several limits at once: found wherever one of all plans is within them, and nowhere else."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bayesbits as bb
from bayesbits.compression.widths_within import UndecidedError, widths_within
from tests.compression.limit_networks import compressor, every_plan, random_limits, random_table


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0, 1]), st.sampled_from([0.05, 0.5]))
def test_a_plan_is_found_wherever_there_is_one(seed, number, overhead):
    attachment = compressor(number).attachment
    table, choose = random_table(attachment, seed, overhead), random.Random(seed)
    plans = list(every_plan(attachment))
    costs = [attachment.cost_model.count(plan, table) for plan in plans]
    for _ in range(40):
        budget = bb.Budget(**random_limits(choose, costs), table=table)
        found = widths_within(attachment, budget, plans[0])
        assert (found is not None) == any(map(budget.allows, costs))
        if found is not None:
            assert budget.allows(attachment.cost_model.count(found, table))
            assert found.kept == plans[0].kept


def test_work_that_would_take_too_long_is_given_up():
    attachment = compressor(1).attachment
    table = random_table(attachment, 0)
    plans = list(every_plan(attachment))
    costs = [attachment.cost_model.count(plan, table) for plan in plans]
    budget = bb.Budget(latency_ms=costs[0].latency_ms, table=table)
    assert widths_within(attachment, budget, plans[0]) is not None
    with pytest.raises(UndecidedError):
        widths_within(attachment, budget, plans[0], most_nodes=0)
