"""A budget from numbers and from text, and its errors."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bayesbits as bb
from bayesbits.compression.budget import as_budget, counted, least_limit_text
from tests.latency_tables import made_up_table

NUMBERS = st.floats(1e-6, 1e15, allow_nan=False)


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("0.5% bops", bb.Budget(relative_bops=0.5)),
        ("0.5 % of the bit operations", bb.Budget(relative_bops=0.5)),
        ("1.2 GBOPs", bb.Budget(bops=1.2e9)),
        ("3e6 bops", bb.Budget(bops=3e6)),
        ("500 kB", bb.Budget(weight_bytes=500_000)),
        ("500 KB", bb.Budget(weight_bytes=500_000)),
        ("2.1 MB", bb.Budget(weight_bytes=2_100_000)),
        ("2 MiB", bb.Budget(weight_bytes=2 * 2**20)),
        ("500,000 bytes", bb.Budget(weight_bytes=500_000)),
        ("0.5% bops, 500 kB", bb.Budget(relative_bops=0.5, weight_bytes=500_000)),
        ("0.5% bops and 1 GBOPs; 7 B", bb.Budget(relative_bops=0.5, bops=1e9, weight_bytes=7)),
    ],
)
def test_text_with_units(text, budget):
    assert bb.Budget.parse(text) == budget


TABLE = made_up_table(bb.trace(torch.nn.Linear(4, 2), torch.zeros(1, 4)))


@pytest.mark.parametrize(("text", "milliseconds"), [("2.5 ms", 2.5), ("40 us", 0.04), ("40 µs", 0.04), ("1.5 s", 1500)])
def test_milliseconds_have_a_table(text, milliseconds, tmp_path):
    budget = bb.Budget.parse(text, TABLE)
    assert budget == bb.Budget(latency_ms=milliseconds, table=TABLE)
    assert budget.limits == {"latency_ms": milliseconds}
    assert bb.Budget.parse(str(budget), TABLE) == budget
    assert "made-up" not in repr(budget)
    TABLE.save(tmp_path / "table.json")
    for path in (tmp_path / "table.json", str(tmp_path / "table.json")):
        assert bb.Budget.parse(text, path) == budget == bb.Budget(latency_ms=milliseconds, table=path)
    assert bb.Budget.from_json(budget.to_json()) == budget
    both = bb.Budget.parse(f"0.5% bops, {text}", TABLE)
    assert both.limits == {"relative_bops": 0.5, "latency_ms": milliseconds}


def test_a_table_without_milliseconds_or_without_a_budget_is_refused():
    with pytest.raises(ValueError, match="no limit in milliseconds"):
        bb.Budget.parse("0.5% bops", TABLE)
    with pytest.raises(ValueError, match=r"there is a latency table and no budget: give option, such as .2.5 ms"):
        as_budget(None, "option", TABLE)
    assert as_budget("2.5 ms", "option", TABLE).latency_ms == 2.5
    assert as_budget({"latency_ms": 2.5}, "option", TABLE).table is TABLE
    assert as_budget(bb.Budget(latency_ms=1, table=TABLE), "option", TABLE).table is TABLE


def test_what_a_plan_comes_to_under_each_limit():
    compressor = bb.attach(torch.nn.Linear(4, 2), torch.zeros(1, 4))
    plan = bb.Plan.uniform(compressor.topology, 4, 8)
    budget = bb.Budget(relative_bops=50, bops=1e9, weight_bytes=13, latency_ms=1, table=TABLE)
    cost = compressor.cost(plan, TABLE)
    expected = {"relative_bops": 3.125, "bops": 256.0, "weight_bytes": 12.0, "latency_ms": cost.latency_ms}
    assert counted(budget, compressor.attachment.cost_model, plan) == expected
    assert budget.allows(cost)
    assert not bb.Budget(latency_ms=0.9 * cost.latency_ms, table=TABLE).allows(cost)
    assert bb.Budget(latency_ms=2 * cost.latency_ms, table=TABLE).used(cost) == pytest.approx(0.5)
    assert budget.describe(cost).endswith(f"12 B, {cost.latency_ms:.4g} ms predicted")
    with pytest.raises(ValueError, match="this cost has no latency_ms: count it with the table"):
        budget.allows(compressor.cost(plan))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0.5", "does not say of what"),
        ("0.5%", "does not say of what"),
        ("0,5% bops", "not understood|not known"),
        ("-1 kB", "not positive"),
        ("0% bops", "not positive"),
        ("500 kb", "unit 'kb', which is not known"),
        ("2.5 ms", "a limit of 2.5 ms needs the latency table.*bayesbits measure.*--latency-table"),
        ("2 m", "unit 'm', which is not known"),
        ("1 ms, 2 us", "limits the latency twice"),
        ("half", "not understood"),
        ("", "not understood"),
        ("1% bops, 2% bops", "limits the bit operations twice"),
        ("1 kB, 2 MB", "limits the bytes twice"),
        ("101% bops", "at most 100"),
        (5, "text with a unit"),
    ],
)
def test_text_that_is_no_budget(text, problem):
    with pytest.raises(ValueError, match=problem):
        bb.Budget.parse(text)


def test_numbers_that_are_no_budget():
    with pytest.raises(ValueError, match="at least one limit"):
        bb.Budget()
    for wrong in (-1, 0, float("nan"), float("inf"), True, "1"):
        with pytest.raises(ValueError, match=r"Budget.bops is .*positive"):
            bb.Budget(bops=wrong)


@given(st.one_of(st.none(), st.floats(1e-6, 100)), st.one_of(st.none(), NUMBERS), NUMBERS)
def test_text_and_json_say_the_same_number_again(relative, bops, size):
    budget = bb.Budget(relative, bops, size)
    assert bb.Budget.parse(str(budget)) == budget
    assert bb.Budget.from_json(budget.to_json()) == budget


def test_the_json_form_names_every_field():
    assert json.loads(bb.Budget(relative_bops=2).to_json()) == {
        "relative_bops": 2, "bops": None, "weight_bytes": None, "latency_ms": None, "table": None, "version": 1,
    }  # fmt: skip


def test_what_a_user_may_give():
    assert as_budget(None, "x") is None
    assert as_budget("1 kB", "x") == as_budget({"weight_bytes": 1000}, "x") == bb.Budget(weight_bytes=1000)
    with pytest.raises(ValueError, match=r"SearchConfig.budget is 4; it has a unit"):
        as_budget(4, "SearchConfig.budget")
    with pytest.raises(ValueError, match=r"SearchConfig.budget: the budget '4' does not say of what"):
        as_budget("4", "SearchConfig.budget")
    with pytest.raises(ValueError, match=r"budget: .*latency"):
        as_budget({"latency": 4}, "budget")


def test_a_cost_is_within_a_budget_if_it_is_within_all_limits():
    compressor = bb.attach(torch.nn.Linear(4, 2), torch.zeros(1, 4))
    cost = compressor.cost(bb.Plan.uniform(compressor.topology, weights=4, activations=8))
    assert (cost.bops, cost.relative_bops, cost.weight_bytes) == (256, 3.125, 12)
    exact = bb.Budget(relative_bops=3.125, bops=256, weight_bytes=12)
    assert exact.allows(cost)
    assert exact.used(cost) == 1.0
    assert exact.describe(cost) == "3.125% bops, 256 BOPs, 12 B"
    for less in ({"relative_bops": 3.12}, {"bops": 255}, {"weight_bytes": 11}):
        assert not bb.Budget(**exact.limits | less).allows(cost)
    assert bb.Budget(bops=128, weight_bytes=120).used(cost) == 2.0


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("relative_bops", 0.204100001, "0.2042% bops"),
        ("relative_bops", 0.2041, "0.2041% bops"),
        ("weight_bytes", 123_441, "123.5 kB"),
        ("weight_bytes", 999_999, "1000 kB"),
        ("latency_ms", 2.0004, "2.001 ms"),
        ("bops", 12_340_001, "12.35 MBOPs"),
    ],
)
def test_the_least_limit_is_rounded_up(name, value, text):
    assert least_limit_text(name, value) == text
    assert bb.Budget.parse(text, TABLE if name == "latency_ms" else None).limits[name] >= value
