"""Whole networks are timed, and predicted from the times of their layers."""

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.deploy.onnx.export import to_onnx
from bayesbits.deploy.onnx.measure import measure
from bayesbits.deploy.onnx.measured_network import MeasuredNetwork, network_ms
from tests.deploy.onnx.timed import EXAMPLE, network


def test_whole_networks_that_were_measured_are_predicted_exactly(clock):
    spec = bb.Spec(bits=(2, 4, 8, 32))
    table = measure(network(), EXAMPLE, spec)
    assert table.kinds() == (8, 32)
    assert {layer.forms for layer in table.layers[:4]} == {("codes", "numbers", "float")}
    measured = MeasuredNetwork(network(), EXAMPLE, spec, 1)
    compressor = bb.attach(network(), EXAMPLE, spec)
    plans = measured.plans()
    assert [(kind, part) for kind, part, _ in plans] == [(k, p) for k in (8, 32) for p in (1.0, 0.5)]
    for (kind, _, plan), overhead in zip(plans, table.overheads, strict=True):
        assert compressor.cost(plan, table).latency_ms == pytest.approx(overhead.network_ms)
        widths = {plan.bits[activation.name] for activation in compressor.topology.activations[1:]}
        assert widths <= {8: {2, 8}, 32: {32}}[kind]
    assert {plans[0][2].bits[a.name] for a in compressor.topology.activations[1:]} == {2, 8}


@pytest.mark.check
def test_a_real_clock_gives_times_of_every_row():
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6, 3)).eval()
    example = torch.randn(1, 2, 8)
    table = measure(model, example, rounds=1)
    table.check(bb.trace(model, example))
    assert all(ms >= 0 for ms in table.rows.values())
    assert all(one.network_ms > 0 for one in table.overheads)
    compressor = bb.attach(model, example)
    compressor.calibrate([example])
    compressor.fix(bb.Plan.uniform(compressor.topology))
    small = bb.deploy(compressor)
    assert network_ms(to_onnx(small, example, "fast"), small, example, threads=1, rounds=1) > 0
