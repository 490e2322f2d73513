"""Plans at random: widths for what is free, 8 bits for inputs and operands, and the last part of every group gone."""

from benchmarks.deployed import random_plan
from tests.graph.networks import traced


def test_random_plans():
    topology = traced("residual")[2]
    plan = random_plan(topology, (2, 4), 0.5)
    assert plan == random_plan(topology, (2, 4), 0.5)
    fixed = {"stem.input", *topology.operand_tensors}
    assert fixed == {"stem.input", "outer_norm.output", "stem_norm.output", "inner.output"}
    assert {plan.bits[name] for name in fixed} == {8}
    free = {name: bits for name, bits in plan.bits.items() if name not in fixed}
    assert set(free.values()) == {2, 4}
    assert set(free) == {*topology.weight_tensors, "inner.input", "outer.input", "head.input"}
    assert plan.kept == {"stem": (0, 1, 2), "outer": (0, 1, 2), "inner": (0, 1)}
    plan.check(topology)


def test_without_a_share_to_drop_all_channels_stay():
    assert random_plan(traced("residual")[2], (8,), 0.0).kept == {}
