"""The expected costs under a budget: one for each limit, and equal to what is counted where all gates are decided."""

import pytest
import torch

import bayesbits as bb
from bayesbits.compression.expected_costs import ExpectedCosts, limits_of
from tests.latency_tables import made_up_table
from tests.training.problems import compressor


def test_absolute_bit_operations_are_a_percentage_of_the_float_network():
    attachment = compressor().attachment
    dense = attachment.cost_model.dense().bops
    assert limits_of(attachment, bb.Budget(bops=dense / 50)) == {"relative_bops": pytest.approx(2.0)}
    assert limits_of(attachment, bb.Budget(bops=dense / 50, relative_bops=1.0)) == {"relative_bops": 1.0}


def test_costs_stand_in_the_order_of_the_limits_and_are_the_counted_ones_of_the_decision():
    handle = compressor()
    table = made_up_table(handle.topology)
    costs = ExpectedCosts(
        handle.attachment, bb.Budget(latency_ms=9.0, weight_bytes=800, relative_bops=2.0, table=table)
    )
    assert costs.limits == {"relative_bops": 2.0, "weight_bytes": 800, "latency_ms": 9.0}
    with torch.no_grad():
        for quantizer in handle.attachment.quantizers.values():
            quantizer.gates.logits.copy_(torch.linspace(4.0, -4.0, quantizer.gates.logits.numel()))
    counted = handle.cost(table=table)
    wanted = [counted.relative_bops, counted.weight_bytes, counted.latency_ms]
    assert costs(decided=True).tolist() == pytest.approx(wanted, rel=1e-5)
    expected = costs()
    assert expected.shape == (3,)
    assert expected.tolist() != pytest.approx(wanted, rel=1e-3)  # open gates may be closed, and closed ones open
    assert not costs.state_dict()


def test_every_cost_has_a_gradient_for_what_it_depends_on():
    handle = compressor()
    weight, activation = (handle.attachment.quantizers[name] for name in ("hidden.weight", "hidden.input"))
    for budget, activations in ((bb.Budget(weight_bytes=800), False), (bb.Budget(relative_bops=2.0), True)):
        cost = ExpectedCosts(handle.attachment, budget)().sum()
        slopes = torch.autograd.grad(cost, [weight.gates.logits, activation.gates.logits])
        assert bool((slopes[0] > 0).all())
        assert bool((slopes[1] > 0).any()) == activations
