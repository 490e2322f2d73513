"""The penalty of a sweep: what the budget limits, so that no gate closes for something that nobody asked for."""

import pytest
import torch

import bayesbits as bb
from bayesbits.compression.latency_prices import LatencyPrices
from bayesbits.compression.smallest_plan import smallest_plan
from bayesbits.posttraining.sweep_penalty import sweep_penalty
from tests.latency_tables import made_up_table
from tests.posttraining.networks import attached, pairs


def handle(**options) -> bb.Compressor:
    return attached(bb.Spec(**({"prune": False, "residual_bits": None, "gates": "hard_sigmoid"} | options)))


@pytest.mark.parametrize("penalty", ["paper", "expected_bops"])
def test_where_only_bit_operations_are_limited_the_penalty_is_that_of_the_spec(penalty):
    compressor = handle(penalty=penalty)
    for budget in (None, bb.Budget(relative_bops=2.0), bb.Budget(bops=1000)):
        assert torch.equal(sweep_penalty(compressor, budget)(), compressor.penalty())


def test_a_spec_that_charges_for_bytes_is_of_no_use_for_bit_operations():
    compressor = handle(penalty="expected_bytes")
    found = sweep_penalty(compressor, bb.Budget(relative_bops=2.0))()
    torch.testing.assert_close(found, compressor.expected_relative_bops() / 2.0)


def test_each_limit_is_charged_in_units_of_itself():
    compressor = handle()
    table = made_up_table(compressor.topology)
    budget = bb.Budget(relative_bops=2.0, weight_bytes=100, latency_ms=0.5, table=table)
    attachment = compressor.attachment
    wanted = attachment.expected_bops() / 2 + attachment.expected_bytes() / 100
    wanted = wanted + LatencyPrices(attachment, table)() / 0.5
    torch.testing.assert_close(sweep_penalty(compressor, budget)(), wanted.float())


def activations(compressor: bb.Compressor, plan: bb.Plan) -> set[int]:
    """The widths of the activations that learn."""
    learning = (name for name, q in compressor.attachment.quantizers.items() if q.mode == "learning")
    return {plan.bits[name] for name in learning if not name.endswith("weight")}


def test_a_limit_on_bytes_narrows_weights_and_no_activation():
    compressor = handle(bits=(2, 4, 8))
    budget = bb.Budget(weight_bytes=compressor.cost(bb.Plan.uniform(compressor.topology, 4, 8)).weight_bytes)
    config = bb.PosttrainConfig(mus=(1e-6, 3.0), steps=60, gate_lr=0.5)
    front = bb.posttrain(compressor, pairs(), config=config, budget=budget)
    assert [point.plan.bits["hidden.weight"] for point in front.points[:2]] == [
        8,
        2,
    ]  # the second weight is a large one
    assert all(activations(compressor, point.plan) == {8} for point in front.points)
    assert budget.allows(compressor.cost(front.points[-1].plan))
    narrow = bb.posttrain(handle(bits=(2, 4, 8)), pairs(), config=config, budget="3% bops")
    assert activations(compressor, narrow.points[1].plan) == {2}


def test_a_limit_on_milliseconds_closes_the_gates_that_the_table_has_a_price_for():
    compressor = handle(bits=(8, 32))
    table = made_up_table(compressor.topology)
    fast = compressor.cost(smallest_plan(compressor.attachment), table).latency_ms
    slow = compressor.cost(table=table).latency_ms
    assert fast < 0.9 * slow
    budget = bb.Budget(latency_ms=(fast + slow) / 2, table=table)
    config = bb.PosttrainConfig(mus=(1e-6, 10.0), steps=60, gate_lr=0.5)
    front = bb.posttrain(compressor, pairs(), config=config, budget=budget)
    costs = [compressor.cost(point.plan, table).latency_ms for point in front.points]
    assert costs[0] == slow  # a small weight closes no gate
    assert costs[1] <= budget.latency_ms
    assert costs[2] <= budget.latency_ms
    bb.restore(compressor, front.points[-1])
    assert budget.allows(compressor.cost(table=table))


@pytest.mark.parametrize("limit", ["bytes", "milliseconds"])
def test_the_default_weights_suit_the_limit(limit):
    compressor = handle(bits=(2, 4, 8, 32))
    table = made_up_table(compressor.topology)
    cost = compressor.cost(bb.Plan.uniform(compressor.topology, 8, 8), table)
    budget = bb.Budget(weight_bytes=0.7 * cost.weight_bytes)
    if limit == "milliseconds":
        budget = bb.Budget(latency_ms=1.05 * cost.latency_ms, table=table)
    front = bb.posttrain(compressor, pairs(), config=bb.PosttrainConfig(steps=30, gate_lr=0.5), budget=budget)
    used = [budget.used(compressor.cost(point.plan, table)) for point in front.points[:-1]]
    assert len(used) == 8
    assert used[-1] < 0.95 * used[0]
    assert budget.allows(compressor.cost(front.points[-1].plan, table))
