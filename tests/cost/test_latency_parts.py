"""The parts of the milliseconds add up to what is counted."""

import random

import pytest
import torch

import bayesbits as bb
from bayesbits.cost.latency_parts import LatencyParts, width_in
from tests.latency_tables import made_up_table
from tests.networks import Inverted, random_plan


@pytest.mark.parametrize("seed", range(6))
def test_the_parts_add_up_to_the_milliseconds_of_a_plan(seed):
    compressor = bb.attach(Inverted(), torch.zeros(1, 3, 8, 8), bb.Spec(residual_bits=None))
    table, model = made_up_table(compressor.topology), compressor.attachment.cost_model
    plan = random_plan(compressor.topology, seed)
    plan = bb.Plan(
        {name: bits for name, bits in plan.bits.items() if name not in compressor.topology.operand_tensors}, plan.kept
    )
    other = {name: random.Random(seed).choice((2, 8, 16, 32)) for name in plan.bits}
    parts = LatencyParts.of(model, table, bb.Plan(other, plan.kept))
    widths = [[width_in(dict(plan.bits), name) for name in own] for own in parts.tensors]
    layers = [parts.layer_ms(number, *own) for number, own in enumerate(widths)]
    overhead = sum(parts.overhead_ms(number, own[1]) for number, own in enumerate(widths))
    counted = model.count(plan, table)
    assert layers == pytest.approx([layer.latency_ms for layer in counted.layers])
    assert parts.total_ms(sum(layers), overhead) == pytest.approx(counted.latency_ms)


def test_a_layer_that_is_removed_takes_no_time():
    compressor = bb.attach(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)), torch.zeros(1, 4))
    plan = bb.Plan.uniform(compressor.topology, 8, 8)
    gone = bb.Plan({**plan.bits, "0.weight": 0}, {"0": ()})
    parts = LatencyParts.of(compressor.attachment.cost_model, made_up_table(compressor.topology), gone)
    assert parts.layers[..., 0].tolist() == torch.zeros(2, 2, 2).tolist()
    assert (parts.layers[..., 1] > 0).all()


def test_the_least_overhead_with_more_channels():
    compressor = bb.attach(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)), torch.zeros(1, 4))
    table = made_up_table(compressor.topology)
    plan = bb.Plan.uniform(compressor.topology, 8, 8)
    few = bb.Plan(plan.bits, {"0": (0,)})
    model = compressor.attachment.cost_model
    fewest, all_of_them = (LatencyParts.of(model, table, one).overheads for one in (few, plan))
    assert (fewest < all_of_them).any()
    assert torch.equal(LatencyParts.of(model, table, few, more_channels=True).overheads, fewest)
    falling = tuple(bb.records.latency_table.Overhead(one.bits, one.share, 1.0, -one.ms) for one in table.overheads)
    table = bb.LatencyTable("a processor", "a runtime", 1, table.layers, table.rows, falling)
    all_of_them = LatencyParts.of(model, table, plan).overheads
    assert torch.allclose(LatencyParts.of(model, table, few, more_channels=True).overheads, all_of_them)
