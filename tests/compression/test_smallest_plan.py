"""The smallest cost under a spec, and the error that names what holds it up."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

import bayesbits as bb
from bayesbits.compression.smallest_plan import check_reachable, fastest_plan, smallest_plan
from bayesbits.zoo import models
from tests.compression.gate_networks import compressors
from tests.graph.attention import attention, examples
from tests.latency_tables import OVERHEADS, made_up_table


def lenet(**options):
    return bb.attach(models.create("lenet5"), torch.zeros(1, 1, 28, 28), bb.Spec(**options))


def test_the_narrowest_widths_and_one_channel_of_every_group():
    compressor = lenet()
    plan = smallest_plan(compressor.attachment)
    assert {plan.bits[layer.parameter] for layer in compressor.topology.layers} == {2}
    assert {name: len(kept) for name, kept in plan.kept.items()} == {
        "features.0": 1, "features.3": 1, "classifier.1": 1,
    }  # fmt: skip
    assert plan.bits["features.0.input"] == 8  # the network's input is fixed


def test_a_multiple_and_rules_hold_in_it():
    compressor = lenet(
        channel_multiple=8, bits=(2, 4, 8),
        rules={"features.0": {"prune": False}, "classifier.*": {"min_bits": 4, "min_channels": 9}},
    )  # fmt: skip
    plan = smallest_plan(compressor.attachment)
    assert "features.0" not in plan.kept
    assert len(plan.kept["features.3"]) == 8
    assert len(plan.kept["classifier.1"]) == 16
    with pytest.raises(bb.BudgetError, match=r"classifier.1 .*16 of 512 channels, as a rule keeps 9"):
        check_reachable(compressor.attachment, bb.Budget(weight_bytes=10))
    assert plan.bits["classifier.1.weight"] == plan.bits["classifier.3.input"] == 4
    assert plan.bits["features.3.weight"] == 2


@settings(max_examples=20, deadline=None)
@given(compressors())
def test_no_decision_of_open_gates_is_smaller(compressor):
    least = compressor.cost(smallest_plan(compressor.attachment))
    with torch.no_grad():
        for gate in compressor.attachment.channel_gates.values():
            gate.gates.logits.fill_(6.0)
    cost = compressor.cost()
    assert least.bops <= cost.bops
    assert least.weight_bytes <= cost.weight_bytes


def test_a_budget_that_is_just_reachable_passes():
    compressor = lenet()
    least = compressor.cost(smallest_plan(compressor.attachment))
    exact = bb.Budget(relative_bops=least.relative_bops, weight_bytes=least.weight_bytes)
    check_reachable(compressor.attachment, exact)
    with pytest.raises(bb.BudgetError):
        check_reachable(compressor.attachment, bb.Budget(weight_bytes=least.weight_bytes - 1))


def test_the_error_names_the_smallest_cost_and_what_holds_it_up():
    compressor = lenet(rules={"classifier.1": {"bits": 8, "prune": False}})
    least = compressor.cost(smallest_plan(compressor.attachment))
    with pytest.raises(bb.BudgetError) as raised:
        check_reachable(compressor.attachment, bb.Budget(weight_bytes=100))
    text = str(raised.value)
    assert "the budget of 100 B cannot be reached" in text
    assert f"costs {math.ceil(least.weight_bytes / 10) / 100:.4g} kB" in text  # rounded up: a budget that is enough
    assert "classifier.1 (" in text
    assert "weight fixed at 8 bits" in text
    assert "512 of 512 channels, as a rule keeps them" in text
    with pytest.raises(bb.BudgetError, match=r"features.0 \(\d+%: weight at 2 bits, input fixed at 8 bits, 1 of 32"):
        check_reachable(lenet().attachment, bb.Budget(bops=1))
    with pytest.raises(bb.BudgetError, match=r"as Spec\.prune is False"):
        check_reachable(lenet(prune=False).attachment, bb.Budget(bops=1))


def test_what_stays_in_float_is_named():
    class Products(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x):
            return torch.matmul(self.layer(x), x.transpose(1, 2)) @ x

    compressor = bb.attach(Products(), torch.zeros(1, 64, 4))
    with pytest.raises(bb.BudgetError, match=r"what stays in float outside of the layers \(\d+%\)"):
        check_reachable(compressor.attachment, bb.Budget(relative_bops=0.1))


def test_the_error_names_the_smallest_latency_and_what_holds_it_up():
    compressor = lenet(rules={"classifier.1": {"bits": 16}}, prune=False)
    table = made_up_table(compressor.topology)
    least = compressor.cost(fastest_plan(compressor.attachment, table), table).latency_ms
    check_reachable(compressor.attachment, bb.Budget(latency_ms=least, table=table))
    with pytest.raises(bb.BudgetError) as raised:
        check_reachable(compressor.attachment, bb.Budget(latency_ms=0.01, table=table))
    message = str(raised.value)
    assert f"costs {math.ceil(1e2 * least) / 1e2:.4g} ms predicted. Most of it is classifier.1 (" in message
    assert "weight fixed at 16 bits" in message


def test_what_is_outside_of_the_layers_is_named():
    compressor = lenet(bits=(2, 4, 8))
    table = made_up_table(compressor.topology, overheads=tuple(replace(one, ms=5.0) for one in OVERHEADS))
    with pytest.raises(bb.BudgetError, match=r"Most of it is what is outside of the layers \(9\d%\)"):
        check_reachable(compressor.attachment, bb.Budget(latency_ms=4.0, table=table))


def test_a_table_that_lacks_widths_or_is_of_another_network_is_refused_before_work():
    compressor = lenet()
    integers = made_up_table(compressor.topology, forms=("codes", "numbers"))
    with pytest.raises(ValueError, match=r"it has no time of 'features.0' in float. Measure with the same spec"):
        check_reachable(compressor.attachment, bb.Budget(latency_ms=1, table=integers))
    narrow = lenet(bits=(2, 4, 8))
    check_reachable(narrow.attachment, bb.Budget(latency_ms=1, table=integers))
    other = made_up_table(bb.trace(torch.nn.Linear(4, 2), torch.zeros(1, 4)))
    with pytest.raises(ValueError, match="another network"):
        check_reachable(narrow.attachment, bb.Budget(latency_ms=1, table=other))


def test_a_tensor_in_float_is_chosen_where_16_bits_are_slower():
    compressor = lenet(bits=(16, 32), input_bits=32)
    rounded = tuple(replace(one, ms=one.ms + (one.bits == 16)) for one in OVERHEADS)
    table = made_up_table(compressor.topology, overheads=rounded)
    plan = fastest_plan(compressor.attachment, table)
    assert {plan.bits[activation.name] for activation in compressor.topology.activations} == {32}
    assert plan.kept == smallest_plan(compressor.attachment).kept


def test_a_product_of_two_activations_is_named():
    spec = bb.Spec(bits=(4, 8), activation_products=True, rules={"sdpa.scores": {"bits": 16}})
    compressor = bb.attach(attention(), examples(1), spec)
    assert smallest_plan(compressor.attachment).bits["sdpa.probabilities"] == 4
    with pytest.raises(bb.BudgetError, match=r"Most of it is sdpa.scores \(\d+%: operands at 16 and 16 bits\)"):
        check_reachable(compressor.attachment, bb.Budget(relative_bops=1))
