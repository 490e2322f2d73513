"""The sentence at the end of a run."""

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.recipes.metrics import Score
from bayesbits.recipes.verdict import limits_nothing, no_gate_closed, verdict_of


def handle(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return bb.attach(model, torch.zeros(1, 8), bb.Spec(**options))


def score(value, before=None, unit="%"):
    return (Score("accuracy", value, before, unit, higher_is_better=True),)


def verdict(compressor, plan, *arguments):
    return verdict_of(compressor, plan, compressor.cost(plan), *arguments)


def test_within_a_budget():
    compressor = handle()
    plan = bb.Plan.uniform(compressor.topology, 2, 4)
    text = verdict(compressor, plan, score(98.1, 98.4), bb.Budget(relative_bops=1.5))
    assert text == "within the budget of 1.5% bops: 1.302% bops, accuracy -0.30 points"
    text = verdict(compressor, plan, score(0.5, None, ""), bb.Budget(weight_bytes=60))
    assert text == "not within the budget of 60 B: 128 B, accuracy 0.5"


def test_a_budget_that_limits_nothing_is_called_so():
    compressor = handle()
    open_bops, plan = compressor.cost().relative_bops, bb.Plan.uniform(compressor.topology, 8, 8)
    text = verdict(compressor, plan, (), bb.Budget(relative_bops=open_bops, weight_bytes=10**6))
    assert "; this budget limits nothing, as the widest widths and all channels cost 50% bops, 848 B: lower it" in text
    assert limits_nothing(compressor, bb.Budget(relative_bops=0.99 * open_bops, weight_bytes=10**6)) == ""


def test_without_a_budget():
    compressor = handle()
    plan = bb.Plan.uniform(compressor.topology, 8, 8)
    assert verdict(compressor, plan, ()) == "6.25% of the bit operations are left"
    assert verdict(compressor, compressor.plan(), score(97.0, 97.0)) == (
        "no gate closed: 50% of the bit operations are left, accuracy +0.00 points"
    )


def test_no_gate_closed_means_all_widths_and_all_channels():
    compressor = handle()
    plan = compressor.plan()
    assert no_gate_closed(compressor, plan)
    assert not no_gate_closed(compressor, bb.Plan({**plan.bits, "2.weight": 16}))
    assert not no_gate_closed(compressor, bb.Plan(plan.bits, {"0": tuple(range(15))}))
    fixed = handle(bits=(8,), prune=False)
    assert not no_gate_closed(fixed, fixed.plan())  # there was nothing to learn


def test_many_points_lost_are_named_with_the_way_on():
    compressor = handle()
    text = verdict(compressor, bb.Plan.uniform(compressor.topology, 2, 2), score(10.0, 92.0))
    assert "82 points lost: train longer" in text


def test_what_stays_in_float_is_named():
    class Products(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return torch.matmul(self.layer(x), x.transpose(1, 2)) @ x

    compressor = bb.attach(Products(), torch.zeros(1, 64, 4))
    plan = bb.Plan.uniform(compressor.topology, 2, 2)
    share = 100 * compressor.topology.unsupported[0].macs * 2 * 1024 / compressor.cost(plan).bops
    text = verdict(compressor, plan, ())
    assert f"{share:.0f}% of these bit operations stay in float: " in text
    assert share == pytest.approx(100, abs=1)
