"""The charge in milliseconds: the predicted ones beside the fastest widths, and a way there from everywhere."""

from dataclasses import replace

import pytest
import torch

import bayesbits as bb
from bayesbits.compression.latency_prices import LatencyPrices
from bayesbits.compression.projection import adopt
from bayesbits.compression.smallest_plan import fastest_plan
from tests.compression.gate_networks import set_logits
from tests.latency_tables import made_up_table


def network(**options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
    )
    spec = bb.Spec(**({"bits": (4, 8, 16, 32), "gates": "hard_sigmoid", "prune": False, "input_bits": 32} | options))
    return bb.attach(model, torch.zeros(1, 4), spec)


def conversions_that_cost(topology, ms=1.0):
    """A table with quantizers and dequantizers that take longer than any layer."""
    table = made_up_table(topology)
    rows = {name: ms if name.startswith(("quantize", "dequantize")) else one for name, one in table.rows.items()}
    return replace(table, rows=rows)


@pytest.mark.parametrize("prune", [False, True])
def test_the_charge_is_the_predicted_latency_with_one_tensor_apart(prune):
    compressor = network(prune=prune)
    attachment, table = compressor.attachment, conversions_that_cost(compressor.topology, 0.02)
    prices = LatencyPrices(attachment, table)
    fastest = replace(fastest_plan(attachment, table), kept={"0": (0, 2, 3)} if prune else {})
    whole = replace(fastest, kept={})
    for name in ("0.weight", "2.input", "4.weight", "0.input"):
        for bits in attachment.search_space.widths[name]:
            apart = {**whole.bits, name: bits}
            adopt(attachment, replace(fastest, bits=apart if not prune else whole.bits), certain=True)
            wanted = compressor.cost(table=table).latency_ms
            assert prices.charge().item() == pytest.approx(wanted, rel=1e-3)
            assert prices().item() == pytest.approx(wanted, rel=1e-3)


def test_no_price_is_below_zero_where_float_is_faster():
    compressor = network()
    table = made_up_table(compressor.topology)
    table = replace(table, rows={name: 0.001 if ", float, " in name else ms for name, ms in table.rows.items()})
    prices = LatencyPrices(compressor.attachment, table)
    assert (prices.prices >= 0).all()
    learned = prices.prices[prices._names.index("2.input")]
    assert learned[0] > 0  # a narrow input takes longer
    assert learned[2] == 0


def test_every_gate_is_led_to_the_fastest_widths_from_float():
    """Where the expected milliseconds grow if a single tensor is made narrow, the charge falls."""
    compressor = network(input_bits=8)
    attachment, table = compressor.attachment, conversions_that_cost(compressor.topology)
    set_logits(compressor, 0.0, 0)
    adopt(attachment, bb.Plan.uniform(compressor.topology, 32, 32), certain=False)
    logits = attachment.quantizers["2.input"].gates.logits
    slopes = [
        torch.autograd.grad(penalty(), [logits])[0]
        for penalty in (attachment.expected_latency(table), LatencyPrices(attachment, table))
    ]
    assert slopes[0][1] < 0  # of the gate of 16 bits: the expectation asks to stay in float
    assert slopes[1][1] > 0
    config = bb.PosttrainConfig(mus=(10.0,), steps=80, gate_lr=0.3, loss="mse")
    compressor.calibrate([torch.randn(32, 4)])
    fast = compressor.cost(fastest_plan(attachment, table), table).latency_ms
    compressor.model.eval()
    budget = bb.Budget(latency_ms=1.5 * fast, table=table)
    front = bb.posttrain(compressor, torch.randn(64, 4).split(32), config=config, budget=budget)
    assert compressor.cost(front.points[0].plan, table).latency_ms == pytest.approx(fast)


def test_the_value_is_the_expected_latency_and_the_gradient_that_of_the_charge():
    compressor = network()
    attachment, table = compressor.attachment, conversions_that_cost(compressor.topology)
    set_logits(compressor, 1.0, 0)
    prices, expected = LatencyPrices(attachment, table), attachment.expected_latency(table)
    logits = attachment.quantizers["2.weight"].gates.logits
    assert prices().item() == pytest.approx(expected().item())
    assert prices.charge().item() != pytest.approx(expected().item(), rel=1e-2)
    slopes = [torch.autograd.grad(value, [logits])[0] for value in (prices(), prices.charge(), expected())]
    assert torch.equal(slopes[0], slopes[1])
    assert not torch.allclose(slopes[0], slopes[2])
    assert prices(decided=True).item() == pytest.approx(compressor.cost(table=table).latency_ms, rel=1e-5)


def test_the_penalty_of_a_spec_leads_out_of_float():
    table = conversions_that_cost(network().topology)
    compressor = network(penalty="expected_latency", latency_table=table, input_bits=8)
    adopt(compressor.attachment, bb.Plan.uniform(compressor.topology, 32, 32), certain=False)
    expected = compressor.attachment.expected_latency(table)
    assert compressor.penalty().item() == pytest.approx(expected().item())
    logits = compressor.attachment.quantizers["2.input"].gates.logits
    assert torch.autograd.grad(compressor.penalty(), [logits])[0][1] > 0


def test_with_widths_up_to_8_bits_the_gradient_is_that_of_the_expected_latency():
    compressor = network(bits=(4, 8), prune=True, input_bits=8)
    attachment, table = compressor.attachment, made_up_table(compressor.topology)
    set_logits(compressor, 1.0, 0)
    logits = attachment.channel_gates["2"].gates.logits
    slopes = [
        torch.autograd.grad(penalty(), [logits])[0]
        for penalty in (attachment.expected_latency(table), LatencyPrices(attachment, table))
    ]
    assert torch.allclose(*slopes)
    assert (slopes[0] > 0).all()


def test_a_table_without_the_widths_of_a_spec_is_refused_when_attaching():
    table = made_up_table(network().topology, forms=("codes", "numbers"))
    with pytest.raises(ValueError, match="no time of '0' in float"):
        network(penalty="expected_latency", latency_table=table)
