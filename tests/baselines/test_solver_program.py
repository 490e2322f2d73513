"""The integer program: the best of all plans within a budget, by trying all of them; rules and shared tensors hold."""

import random
import sys
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
from bayesbits.baselines.solver_program import WidthProgram, allowed_widths
from bayesbits.compression.planning import make_plan
from tests.compression import gate_networks
from tests.compression.test_projection import LIMITS, PARTS, budget_between, check_plan
from tests.latency_tables import made_up_table
from tests.nn.recurrent import compressed


class Shared(nn.Module):
    """Two layers read one activation, two have one weight, and a parameter belongs to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = nn.Linear(3, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
        self.right.weight = self.left.weight
        self.last, self.scale = nn.Linear(4, 2), nn.Parameter(torch.ones(4))

    def forward(self, x):
        x = F.relu(self.first(x)) * self.scale
        return self.last(F.relu(self.left(x)) + self.right(F.relu(self.left(x))))


@cache
def shared(bits=(2, 4, 8)):
    torch.manual_seed(0)
    rules = {"last": {"min_bits": 4}, "first.weight": {"bits": 8}}
    return bb.attach(Shared(), torch.zeros(1, 3), bb.Spec(bits=bits, prune=False, residual_bits=None, rules=rules))


def random_scores(widths, seed, spread):
    """Scores that fall with the width, over several orders of magnitude; tensors with one width have none."""
    choose = random.Random(seed)
    scores = {}
    for name, own in widths.items():
        if len(own) > 1:
            values = sorted((10 ** choose.uniform(-spread, 0) for _ in own[:-1]), reverse=True)
            scores[name] = dict(zip(own, [*values, 0.0], strict=True))
    return scores


def total(scores, plan):
    return sum(own[plan.bits[name]] for name, own in scores.items())


def all_plans(compressor):
    widths = allowed_widths(compressor.attachment)
    for bits in product(*widths.values()):
        yield make_plan(compressor.attachment, dict(zip(widths, bits, strict=True)), {})


@cache
def plans_with_costs():
    compressor = shared()
    return [(plan, compressor.cost(plan)) for plan in all_plans(compressor)]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(LIMITS), PARTS, st.sampled_from([0.5, 3.0, 8.0]))
def test_no_plan_within_the_budget_has_a_smaller_sum_of_scores(seed, names, parts, spread):
    compressor = shared()
    budget = budget_between(compressor, names, [0.6 * part for part in parts])
    program = WidthProgram(compressor.attachment, budget)
    scores = random_scores(program.widths, seed, spread)
    plan = program.solve(scores)
    best = min(total(scores, one) for one, cost in plans_with_costs() if budget.allows(cost))
    assert budget.allows(compressor.cost(plan))
    assert total(scores, plan) == pytest.approx(best, rel=1e-3, abs=1e-12)
    check_plan(compressor, plan)


@settings(max_examples=25, deadline=None)
@given(gate_networks.compressors(), st.sampled_from(LIMITS), PARTS, st.integers(0, 1000))
def test_every_plan_is_within_the_budget_and_the_rules_and_keeps_all_channels(compressor, names, parts, seed):
    widths = allowed_widths(compressor.attachment)
    narrowest = make_plan(compressor.attachment, {name: own[0] for name, own in widths.items()}, {})
    budget = budget_between(compressor, names, parts, narrowest)
    plan = WidthProgram(compressor.attachment, budget).solve(random_scores(widths, seed, 5.0))
    assert budget.allows(compressor.cost(plan))
    assert not plan.kept
    check_plan(compressor, plan)


def test_a_budget_that_is_exactly_the_cost_of_a_plan_is_used_up():
    compressor = shared()
    plan = next(plan for plan in all_plans(compressor) if set(plan.bits.values()) == {8})
    cost = compressor.cost(plan)
    scores = random_scores(allowed_widths(compressor.attachment), 0, 3.0)
    for budget in (
        bb.Budget(relative_bops=cost.relative_bops),
        bb.Budget(bops=cost.bops, weight_bytes=cost.weight_bytes),
    ):
        assert WidthProgram(compressor.attachment, budget).solve(scores) == plan


def test_tensors_that_are_fixed_and_channels_that_are_removed_stay():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    compressor = bb.attach(model, torch.zeros(1, 4), bb.Spec(bits=(2, 4, 8)))
    compressor.attachment.quantizers["2.weight"].fix(8)
    compressor.attachment.channel_gates["0"].fix([True] * 5 + [False] * 3)
    budget = bb.Budget(relative_bops=1.5)
    plan = WidthProgram(compressor.attachment, budget).solve({})
    assert plan.bits["2.weight"] == 8
    assert dict(plan.kept) == {"0": (0, 1, 2, 3, 4)}
    assert budget.allows(compressor.cost(plan))


def test_an_unreachable_budget_is_refused_with_the_smallest_cost():
    with pytest.raises(bb.BudgetError, match=r"cannot be reached: .* costs .*last .*input at 4 bits"):
        WidthProgram(shared().attachment, bb.Budget(relative_bops=0.5))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    compressor = bb.attach(model, torch.zeros(1, 4), bb.Spec(bits=(2, 4, 8)))
    with pytest.raises(bb.BudgetError, match=r"and all channels, as this method removes none, the network costs"):
        WidthProgram(compressor.attachment, bb.Budget(relative_bops=0.5))


def test_without_scipy_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ImportError, match=r'the solver needs scipy; install with: pip install "bayesbits\[solver\]"'):
        WidthProgram(shared().attachment, bb.Budget(relative_bops=50))


@pytest.mark.parametrize("part", [0.0, 0.3, 0.7, 1.0])
def test_milliseconds_hold_though_they_are_no_sum_over_pairs(part):
    compressor = shared((2, 4, 8, 16, 32))
    table = made_up_table(compressor.topology)
    widths = allowed_widths(compressor.attachment)
    ends = [make_plan(compressor.attachment, {name: own[end] for name, own in widths.items()}, {}) for end in (0, -1)]
    least, most = (compressor.cost(plan, table).latency_ms for plan in ends)
    budget = bb.Budget(latency_ms=least + part * (most - least), table=table)
    scores = random_scores(widths, 1, 3)
    plan = WidthProgram(compressor.attachment, budget).solve(scores)
    assert budget.allows(compressor.cost(plan, table))
    eight = make_plan(compressor.attachment, {name: min(8, own[-1]) for name, own in widths.items()}, {})
    assert total(scores, plan) <= total(scores, eight)  # widths up to 8 bits are equally fast
    if part == 1.0:
        assert total(scores, plan) == 0


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_within_the_milliseconds_has_a_smaller_sum_of_scores(seed):
    """By trying all plans, with times and overheads by chance: float can be faster than integers."""
    compressor, choose = shared((8, 16, 32)), random.Random(seed)
    table = made_up_table(compressor.topology)
    rows = {name: choose.uniform(0.001, 0.1) for name in table.rows}
    overheads = tuple(replace(one, ms=choose.uniform(-0.05, 0.05) * (1 + 9 * (seed == 3))) for one in table.overheads)
    table = replace(table, rows=rows, overheads=overheads)
    costs = [(plan, compressor.cost(plan, table)) for plan in all_plans(compressor)]
    times = sorted(cost.latency_ms for _, cost in costs)
    for place in (0, len(times) // 8, len(times) // 2):
        budget = bb.Budget(latency_ms=times[place] * (1 + 1e-9), table=table)
        scores = random_scores(allowed_widths(compressor.attachment), seed, 3.0)
        plan = WidthProgram(compressor.attachment, budget).solve(scores)
        assert budget.allows(compressor.cost(plan, table))
        best = min(total(scores, one) for one, cost in costs if budget.allows(cost))
        assert total(scores, plan) == pytest.approx(best, rel=1e-3, abs=1e-12)


def test_limits_of_which_each_alone_can_be_reached_are_refused():
    compressor = shared((8, 16, 32))
    table = made_up_table(compressor.topology)
    rows = {name: 0.001 if ", float, " in name else ms for name, ms in table.rows.items()}
    table = replace(table, rows=rows, overheads=tuple(replace(one, ms=0.0) for one in table.overheads))
    costs = [compressor.cost(plan, table) for plan in all_plans(compressor)]
    fastest = min(cost.latency_ms for cost in costs)
    fewest = min(cost.bops for cost in costs)
    with pytest.raises(bb.BudgetError, match="each of them can be reached, but not all of them with the same plan"):
        WidthProgram(compressor.attachment, bb.Budget(latency_ms=1.001 * fastest, bops=fewest, table=table))


def test_milliseconds_that_cannot_be_reached_are_refused():
    compressor = shared()
    table = made_up_table(compressor.topology)
    with pytest.raises(bb.BudgetError, match=r"the budget of 0.001 ms cannot be reached.* ms predicted"):
        WidthProgram(compressor.attachment, bb.Budget(latency_ms=0.001, table=table))


def test_the_bytes_of_tables_are_part_of_the_program():
    tokens = torch.arange(6).reshape(2, 3)
    compressor = bb.attach(
        nn.Sequential(nn.Embedding(50, 4), nn.Linear(4, 3)), tokens, bb.Spec(bits=(2, 4, 8), prune=False)
    )
    scores = {"0.weight": {2: 9.0, 4: 3.0, 8: 0.0}, "1.weight": {2: 4.0, 4: 1.0, 8: 0.0}}
    for limit, table, layer in ((224, 8, 8), (223, 8, 4), (130, 4, 8), (119, 4, 4), (74, 2, 8), (73, 2, 4)):
        plan = WidthProgram(compressor.attachment, bb.Budget(weight_bytes=limit)).solve(scores)
        assert (plan.bits["0.weight"], plan.bits["1.weight"]) == (table, layer), limit
        assert compressor.cost(plan).weight_bytes <= limit


def test_the_bit_operations_of_recurrent_weights_are_part_of_the_program():
    compressor = compressed(nn.GRU, spec={"bits": (2, 4, 8), "prune": False, "rules": {"mix": {"bits": 8}}})
    names = ("cell.weight_ih_l0", "cell.weight_hh_l0")
    scores = {names[0]: {2: 9.0, 4: 3.0, 8: 0.0}, names[1]: {2: 4.0, 4: 1.0, 8: 0.0}}
    choices = [dict(zip(names, both, strict=True)) for both in product((2, 4, 8), (2, 4, 8))]
    uniform = {**bb.Plan.uniform(compressor.topology, 8, 8).bits, "head.weight": 2, "head.input": 2}
    costs = {tuple(one.values()): compressor.cost(bb.Plan({**uniform, **one})) for one in choices}
    for limit in sorted(cost.bops for cost in costs.values()):
        plan = WidthProgram(compressor.attachment, bb.Budget(bops=limit)).solve(scores)
        allowed = [both for both, cost in costs.items() if cost.bops <= limit]
        best = min(scores[names[0]][one] + scores[names[1]][other] for one, other in allowed)
        assert sum(scores[name][plan.bits[name]] for name in names) == best
        assert compressor.cost(plan).bops <= limit
