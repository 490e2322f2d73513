"""The weight of the penalty under a budget: it follows the target, and a search ends within the budget."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import bayesbits as bb
from bayesbits.compression.smallest_plan import smallest_plan
from bayesbits.training.budget_control import (
    INITIAL_LOGIT,
    INITIAL_MU,
    PROPORTIONAL,
    SETTLE,
    BudgetControl,
    start_gates,
)
from bayesbits.training.metrics import read_metrics
from tests.latency_tables import made_up_table
from tests.training.problems import Failing, compressor, config, loaders, same, searched, state, training_lines

BUDGET = bb.Budget(relative_bops=0.5)
NARROW = bb.Spec(bits=(2, 4, 8))


def control(budget=BUDGET, steps=100, spec=None):
    return BudgetControl(compressor(spec), budget, steps)


def costs(handle, expected, decided):
    return torch.tensor([[expected], [decided]]).log()


def test_the_target_falls_by_equal_factors_to_the_limit():
    handle = control()
    targets = []
    for part in (0.0, 0.05, 0.25, 0.45, 0.9):
        handle.set_progress(part, step=1)
        targets.append(handle.values()["target_relative_bops"])
    start = handle.values()["expected_relative_bops"]
    assert targets[0] == targets[1] == pytest.approx(start, rel=1e-4)
    assert targets[2] == pytest.approx(math.sqrt(start * 0.5), rel=1e-4)
    assert targets[3:] == pytest.approx([0.5, 0.5], rel=1e-4)


def test_a_network_below_its_budget_keeps_the_limit_as_its_target():
    handle = control(bb.Budget(relative_bops=100))
    assert handle.values()["target_relative_bops"] == pytest.approx(100)


def test_mu_grows_above_the_target_and_shrinks_below():
    for sign in (1, -1):
        handle = control(steps=100)
        handle.set_progress(1.0, step=1)
        mus = []
        for _ in range(3):
            handle.update(costs(handle, 0.5, 0.5 * math.exp(0.5 * sign)))  # at the end the decided cost counts
            mus.append(handle.values()["mu_relative_bops"])
        assert mus[0] == pytest.approx(INITIAL_MU * math.exp(sign * 0.5 * (PROPORTIONAL + handle.gain)), rel=1e-4)
        assert (mus[0] < mus[1] < mus[2]) if sign > 0 else (mus[0] > mus[1] > mus[2])


def test_mu_does_not_shrink_while_the_target_falls():
    handle = control(steps=100)
    mus = {}
    for part in (0.2, 0.44, 0.46):
        handle.set_progress(part, step=1)
        for _ in range(20):
            handle.update(costs(handle, 0.4, 0.4))
        mus[part] = handle.values()["mu_relative_bops"]
    assert mus[0.2] == mus[0.44] == pytest.approx(INITIAL_MU)
    assert mus[0.46] < 0.5 * INITIAL_MU
    within = control(bb.Budget(relative_bops=100), steps=100)
    within.set_progress(0.2, step=1)
    within.update(costs(within, 50.0, 50.0))
    assert within.values()["mu_relative_bops"] < 0.5 * INITIAL_MU


def test_the_expected_cost_counts_at_the_start_and_errors_are_limited():
    handle = control(steps=100)
    handle.set_progress(0.0, step=1)
    start = float(handle.log_start.exp())
    handle.update(costs(handle, start, start / 1000))
    assert handle.values()["mu_relative_bops"] == pytest.approx(INITIAL_MU, rel=1e-3)
    handle.update(costs(handle, 1e6 * start, start))
    assert handle.values()["mu_relative_bops"] == pytest.approx(
        INITIAL_MU * math.exp(PROPORTIONAL + handle.gain), rel=1e-3
    )


def test_the_penalty_is_mu_times_the_logarithm_and_moves_only_gates():
    handle = compressor()
    watched = BudgetControl(handle, bb.Budget(relative_bops=2.0, weight_bytes=100), 10)
    assert watched.names == ("relative_bops", "weight_bytes")
    measured = watched.measure()
    penalty = watched.penalty(measured)
    attachment = handle.attachment
    expected = INITIAL_MU * (torch.log(attachment.expected_bops() / 2.0) + torch.log(attachment.expected_bytes() / 100))
    torch.testing.assert_close(penalty, expected, rtol=1e-4, atol=1e-6)
    penalty.backward()
    groups = {group["name"]: group["params"] for group in handle.parameter_groups()}
    assert all(parameter.grad is not None for parameter in groups["gates"])
    assert all(parameter.grad is None for parameter in groups["weights"] + groups["ranges"])
    assert measured[1].tolist() == pytest.approx(
        [math.log(handle.cost().relative_bops), math.log(handle.cost().weight_bytes)], abs=1e-3
    )


def test_channels_that_groups_take_back_count():
    handle = compressor(bb.Spec(bits=(2, 4, 8), channel_multiple=4))
    with torch.no_grad():
        handle.attachment.channel_gates["hidden"].gates.logits[:3] = -6.0  # 5 of 8 are open, and 8 stay
    watched = BudgetControl(handle, BUDGET, 1000)
    assert watched.values()["decided_relative_bops"] < 0.9 * handle.cost().relative_bops
    watched.set_progress(0.0, step=7)
    assert watched.values()["decided_relative_bops"] < 0.9 * handle.cost().relative_bops
    watched.set_progress(0.0, step=10)
    assert watched.values()["decided_relative_bops"] == pytest.approx(handle.cost().relative_bops, rel=1e-4)


def test_gates_that_have_not_learned_start_near_the_decision():
    handle = compressor()
    handle.attachment.channel_gates["hidden"].gates.logits.data[0] = 5.0
    start_gates(handle)
    assert set(handle.attachment.channel_gates["convolution"].gates.logits.tolist()) == {INITIAL_LOGIT}
    assert handle.attachment.channel_gates["hidden"].gates.logits.tolist() == [5.0] + [6.0] * 7


@pytest.mark.parametrize("text", ["0.5% bops", "3% bops", "60 bytes", "2% bops, 80 bytes"])
def test_a_search_ends_within_its_budget_and_uses_it(text, tmp_path):
    budget = bb.Budget.parse(text)
    handle, plan = searched(gates=None, budget=budget, epochs=15, options={"folder": tmp_path})
    assert handle.plan() == plan
    assert budget.allows(handle.cost(plan))
    larger = bb.Compressor(handle.model).project(budget)  # what still fits would be taken now
    assert larger == plan
    assert budget.used(handle.cost(plan)) > 0.7  # single channels of so small a network are many percent
    lines = read_metrics(tmp_path / "metrics.jsonl")
    (projection,) = [line for line in lines if line["event"] == "projection"]
    assert projection["step"] == math.ceil(SETTLE * 60)
    name = next(iter(budget.limits))
    last = training_lines(tmp_path)[-1]
    assert last[f"decided_{name}"] == pytest.approx(getattr(handle.cost(plan), name), rel=0.05)
    assert last[f"target_{name}"] == pytest.approx(budget.limits[name], rel=1e-4)
    assert last[f"mu_{name}"] > 0
    assert last["lr"]["gates"] == 0.0


@pytest.mark.parametrize("others", [{}, {"weight_bytes": 100}, {"relative_bops": 2.0}])
def test_a_search_ends_within_its_milliseconds(others, tmp_path):
    table = made_up_table(compressor().topology)
    least = compressor().cost(smallest_plan(compressor().attachment), table).latency_ms
    budget = bb.Budget(latency_ms=1.02 * least, table=table, **others)
    options = {"gates": {}, "budget": budget, "epochs": 15}
    handle, plan = searched(options={"folder": tmp_path}, **options)
    assert handle.plan() == plan
    assert budget.allows(handle.cost(plan, table))
    last = training_lines(tmp_path)[-1]
    assert last["decided_latency_ms"] == pytest.approx(handle.cost(plan, table).latency_ms, rel=1e-3)
    assert last["target_latency_ms"] == pytest.approx(budget.latency_ms, rel=1e-4)
    assert last["expected_latency_ms"] > 0
    (projection,) = [line for line in read_metrics(tmp_path / "metrics.jsonl") if line["event"] == "projection"]
    assert projection["latency_ms"][1] <= budget.latency_ms
    again, same_plan = searched(options={"folder": tmp_path, "resume": True}, **options)
    assert same_plan == plan
    assert same(state(again), state(handle))


def test_a_table_of_another_network_is_refused_before_training(tmp_path):
    table = made_up_table(bb.trace(torch.nn.Linear(3, 3), torch.zeros(1, 3)))
    with pytest.raises(ValueError, match="another network"):
        searched(gates={}, budget=bb.Budget(latency_ms=1, table=table), options={"folder": tmp_path / "run"})
    assert not (tmp_path / "run" / "search.checkpoint").exists()


def test_gates_stay_after_the_projection_and_weights_do_not():
    seen = []

    def look(output, targets):
        gate = handle.attachment.channel_gates["hidden"].gates.logits
        seen.append((gate.detach().clone(), handle.model.head.weight.detach().clone()))
        return F.cross_entropy(output, targets)

    handle = compressor()
    searched(handle, None, look, gates=None, budget=BUDGET, epochs=5)
    assert torch.equal(seen[12][0], seen[19][0])  # 12 of 20 steps
    assert not torch.equal(seen[11][0], seen[12][0])
    assert not torch.equal(seen[12][1], seen[19][1])


@pytest.mark.parametrize("call", [2, 9, 11])  # before and after the projection, which is at step 8 of 12
def test_a_search_with_a_budget_resumes_exactly(call, tmp_path):
    def fail():
        raise RuntimeError

    options = {"gates": None, "budget": BUDGET}
    handle, plan = searched(**options)
    with pytest.raises(RuntimeError):
        searched(compressor(), None, Failing(call, fail), options={"folder": tmp_path}, **options)
    again, its_plan = searched(options={"folder": tmp_path, "resume": True}, **options)
    assert its_plan == plan
    assert same(state(again), state(handle))
    finished, last = searched(options={"folder": tmp_path, "resume": True}, **options)
    assert last == plan
    assert same(state(finished), state(handle))


def test_a_search_that_is_too_short_to_settle_is_projected_at_its_end():
    handle, plan = searched(gates=None, budget=BUDGET, epochs=1, epoch_steps=1)
    assert BUDGET.allows(handle.cost(plan))
    assert handle.plan() == plan


def test_an_unreachable_budget_is_refused_before_training(tmp_path):
    handle = compressor()
    before = state(handle)
    with pytest.raises(bb.BudgetError, match="cannot be reached"):
        searched(handle, gates=None, budget=bb.Budget(weight_bytes=20), options={"folder": tmp_path / "run"})
    assert same(state(handle), before)
    assert not (tmp_path / "run" / "search.checkpoint").exists()


def test_a_loader_without_a_length_needs_the_number_of_steps():
    with pytest.raises(ValueError, match="epoch_steps"):
        searched(None, loaders()["stream"], gates=None, budget=BUDGET)
    handle, plan = searched(None, loaders()["stream"], gates=None, budget=BUDGET, epoch_steps=4)
    assert BUDGET.allows(handle.cost(plan))


def test_multiples_hold_and_every_kind_of_gate_arrives():
    for gates, multiple in (("hard_sigmoid", 2), ("sigmoid", 1)):
        spec = bb.Spec(bits=(2, 4, 8), gates=gates, channel_multiple=multiple)
        handle, plan = searched(compressor(spec), gates=None, budget=BUDGET)
        assert BUDGET.allows(handle.cost(plan))
        assert all(len(kept) % multiple == 0 for kept in plan.kept.values())


def test_the_config_that_this_file_uses_has_no_rate_of_its_own():
    assert config(gates=None, budget=BUDGET).gates is None


def test_milliseconds_are_expected_ones_and_lead_out_of_float():
    """Quantizers between layers take so long that no single narrow tensor of a float network saves time."""
    handle = compressor(bb.Spec(prune=False))
    table = made_up_table(handle.topology)
    rows = {name: 1.0 if name.startswith(("quantize", "dequantize")) else ms for name, ms in table.rows.items()}
    table = replace(table, rows=rows)
    whole = handle.cost(bb.Plan.uniform(handle.topology, 32, 32), table).latency_ms
    control = BudgetControl(handle, bb.Budget(latency_ms=0.9 * whole, table=table), steps=100)
    measured = control.measure()
    assert measured[0].exp().item() == pytest.approx(handle.attachment.expected_latency(table)().item(), rel=1e-5)
    logits = handle.attachment.quantizers["hidden.input"].gates.logits
    alone = torch.autograd.grad(handle.attachment.expected_latency(table)(), logits)[0]
    gate = handle.attachment.quantizers["hidden.input"].bits.index(16) - len(
        handle.attachment.quantizers["hidden.input"].bits
    )
    assert alone[gate] < 0
    assert torch.autograd.grad(control.penalty(measured), logits)[0][gate] > 0
