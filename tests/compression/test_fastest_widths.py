"""The fastest widths by a latency table, found exactly, and a bound below which no plan leads: by trying all plans."""

import random
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import bayesbits as bb
from bayesbits.compression.fastest_widths import fastest_widths, least_ms
from bayesbits.compression.planning import make_plan
from bayesbits.compression.projection import project
from bayesbits.compression.smallest_plan import check_reachable, fastest_plan, smallest_plan
from tests.latency_tables import made_up_table


class Branches(nn.Module):
    """Two layers read one tensor and have one weight, and their outputs are added."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = nn.Linear(3, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
        self.right.weight = self.left.weight
        self.middle, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        x = F.relu(self.first(x))
        return self.last(F.relu(self.middle(F.relu(self.left(x)) + self.right(x))))


@cache
def compressor():
    torch.manual_seed(0)
    spec = bb.Spec(
        bits=(8, 16, 32), residual_bits=None, rules={"first.weight": {"bits": 8}, "last.weight": {"bits": 8}}
    )
    return bb.attach(Branches(), torch.zeros(1, 3), spec)


def plans(kept=None):
    """All widths, with the channels of one plan."""
    attachment = compressor().attachment
    widths = attachment.search_space.widths
    for bits in product(*widths.values()):
        yield make_plan(attachment, dict(zip(widths, bits, strict=True)), kept or {})


def random_table(seed, overhead):
    """Every row and every overhead by chance; the overheads are below zero as often as above."""
    choose = random.Random(seed)
    table = made_up_table(compressor().topology)
    rows = {name: choose.uniform(0.001, 0.1) for name in table.rows}
    changed = tuple(replace(one, ms=choose.uniform(-overhead, overhead)) for one in table.overheads)
    return replace(table, rows=rows, overheads=changed)


def milliseconds(table, plan):
    return compressor().cost(plan, table).latency_ms


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.05, 0.5]))
def test_no_widths_are_faster(seed, overhead):
    attachment, table = compressor().attachment, random_table(seed, overhead)
    whole = next(plans())
    least = min(milliseconds(table, plan) for plan in plans())
    found, bound = fastest_widths(attachment, table, whole), least_ms(attachment, table, whole)
    assert bound <= least * (1 + 1e-9)
    assert milliseconds(table, found) >= least * (1 - 1e-9)
    if overhead < 0.1:  # it never takes half of the layers' time away
        assert bound == pytest.approx(least)
        assert milliseconds(table, found) == pytest.approx(least)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.05, 0.5]))
def test_no_plan_with_any_channels_is_below_the_bound(seed, overhead):
    attachment, table = compressor().attachment, random_table(seed, overhead)
    bound = least_ms(attachment, table, smallest_plan(attachment), more_channels=True)
    choose = random.Random(seed)
    for _ in range(40):
        kept = {name: tuple(sorted(choose.sample(range(4), choose.randint(1, 4)))) for name in attachment.channel_gates}
        bits = {name: choose.choice(widths) for name, widths in attachment.search_space.widths.items()}
        assert milliseconds(table, make_plan(attachment, bits, kept)) >= bound * (1 - 1e-9)


def test_the_bound_is_met_where_half_of_the_layers_time_is_the_end():
    """Far below zero the overhead takes half of the layers' time away, whatever the widths: the least time wins."""
    attachment, table = compressor().attachment, random_table(3, 0.0)
    table = replace(table, overheads=tuple(replace(one, ms=-100.0) for one in table.overheads))
    least = min(milliseconds(table, plan) for plan in plans())
    assert milliseconds(table, fastest_widths(attachment, table, next(plans()))) == pytest.approx(least)
    assert least_ms(attachment, table, next(plans())) == pytest.approx(least)


def float_together():
    """A table in which float is faster, but not for a single layer: numbers between the two kinds take long."""
    table = made_up_table(compressor().topology)
    rows = dict.fromkeys(table.rows, 0.2)
    for form, ms in (("codes", 0.1), ("numbers", 0.3), ("float", 0.01)):
        rows |= {name: ms for name in rows if f", {form}, " in name}
    rows |= {name: 0.1 for name in rows if name.startswith("last, numbers, ")}
    return replace(table, rows=rows, overheads=tuple(replace(one, ms=0.0) for one in table.overheads))


def test_widths_that_are_only_faster_together_are_found():
    attachment, table = compressor().attachment, float_together()
    narrow = smallest_plan(attachment)
    for name, widths in attachment.search_space.widths.items():
        for bits in widths:
            wider = replace(narrow, bits={**narrow.bits, name: bits})
            assert milliseconds(table, wider) >= milliseconds(table, narrow)  # no step to a single width helps
    fastest = fastest_plan(attachment, table)
    assert milliseconds(table, fastest) < 0.9 * milliseconds(table, narrow)
    budget = bb.Budget(latency_ms=milliseconds(table, fastest), table=table)
    check_reachable(attachment, budget)
    assert budget.allows(compressor().cost(project(attachment, budget), table))
    with pytest.raises(bb.BudgetError, match="with the widths that are fastest by the latency table, and as few"):
        check_reachable(attachment, replace(budget, latency_ms=0.99 * milliseconds(table, fastest)))


def test_of_equally_fast_widths_the_narrowest_is_taken():
    attachment, table = compressor().attachment, float_together()
    plan = fastest_plan(attachment, table)
    assert plan.bits["left.input"] == 16  # beside which the width of the weight does not matter
    assert plan.bits["left.weight"] == 8


def test_all_channels_where_they_are_faster():
    """Layers take as long with few channels, and are faster together with many."""
    attachment, table = compressor().attachment, made_up_table(compressor().topology)
    table = replace(table, rows=dict.fromkeys(table.rows, 0.1))
    overheads = tuple(replace(one, ms=-0.2 if one.share == 1.0 else 0.0) for one in table.overheads)
    table = replace(table, overheads=overheads)
    fastest = fastest_plan(attachment, table)
    assert not fastest.kept
    assert milliseconds(table, fastest) < milliseconds(table, smallest_plan(attachment)) - 0.05
    budget = bb.Budget(latency_ms=milliseconds(table, fastest), table=table)
    assert budget.allows(compressor().cost(project(attachment, budget), table))
