"""Points of a front are restored exactly, and a point of another network is refused."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.posttraining.front_points import read_point
from tests.posttraining.networks import FEW, accuracy, attached, examples, pairs


def test_every_point_can_be_restored_exactly_from_its_file(tmp_path):
    compressor = attached(bb.Spec(residual_bits=8))
    fresh = bb.attach(copy.deepcopy(compressor).detach(), torch.zeros(2, 4), bb.Spec(residual_bits=8))
    x, _ = examples(16, seed=3)
    outputs = []

    def evaluate(model: nn.Module) -> float:
        with torch.no_grad():
            outputs.append(model(x))
        return accuracy(model)

    bb.posttrain(compressor, pairs(), "gates+ranges", FEW, evaluate=evaluate).save(tmp_path / "front.json")
    front = bb.Front.load(tmp_path / "front.json")
    assert len({point.plan.to_json() for point in front.points}) == 3
    for point, output in zip(front.points, outputs, strict=True):
        bb.restore(fresh, point)
        assert torch.equal(fresh.model(x), output)
        assert fresh.cost().relative_bops == point.relative_bops
        assert point.score == accuracy(fresh.model)


def test_a_point_of_another_network_is_refused():
    compressor = attached()
    front = bb.posttrain(compressor, pairs(), config=bb.PosttrainConfig(mus=(0.001,), steps=1))
    other = attached(bb.Spec(prune=False, residual_bits=8))
    with pytest.raises(TypeError, match=r"one Point of a Front, and this is a Front: pass front\.points\[0\]"):
        bb.restore(other, front)
    with pytest.raises(TypeError, match="restore takes the Compressor"):
        bb.restore(other.model, front.points[0])
    with pytest.raises(ValueError, match="has no range for 'stem"):
        bb.restore(other, dataclasses.replace(front.points[0], ranges={}))
    channels = attached(bb.Spec(prune=False, residual_bits=None, per_channel_weights=True))
    with pytest.raises(ValueError, match=r"1 ranges for 'stem\.weight', whose quantizer has 8"):
        bb.restore(channels, front.points[0])


def test_a_point_has_the_present_ranges_and_the_cost_of_its_plan():
    compressor = attached()
    compressor.attachment.quantizers["stem.weight"].set_range(2.0)
    plan = bb.Plan.uniform(compressor.topology, 4, 8)
    point = read_point(compressor, plan, score=3.0, mu=0.5)
    assert point.plan == plan
    assert point.relative_bops == compressor.cost(plan).relative_bops
    assert point.ranges["stem.weight"].log_beta == pytest.approx((0.693147,), abs=1e-6)
    assert (point.score, point.mu) == (3.0, 0.5)
    assert read_point(compressor).plan == compressor.plan()


def test_asymmetric_ranges_are_part_of_a_point_and_need_quantizers_that_can_have_them():
    compressor = attached()
    compressor.attachment.quantizers["stem.input"].set_range(1.0, alpha=-0.25)
    point = read_point(compressor)
    found = point.ranges["stem.input"]
    assert (found.kind, found.log_alpha) == ("asymmetric", pytest.approx(-1.386294, abs=1e-6))
    assert point.ranges["stem.weight"].kind == "symmetric"
    compressor.attachment.quantizers["stem.input"].set_range(3.0, signed=False)
    bb.restore(compressor, point)
    assert compressor.attachment.quantizers["stem.input"].alpha.item() == pytest.approx(-0.25)
    other = attached(bb.Spec.paper())
    with pytest.raises(ValueError, match=r"an asymmetric range for 'stem\.input', whose quantizer cannot have one"):
        bb.restore(other, point)


def test_activations_at_run_time_have_no_range_to_keep(tmp_path):
    spec = bb.Spec(activations="dynamic", residual_bits=None)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval()
    compressor = bb.attach(copy.deepcopy(model), torch.zeros(2, 4), spec)
    x = torch.randn(32, 4)
    config = bb.PosttrainConfig(mus=(0.001, 0.1), steps=2, loss="output")
    bb.posttrain(compressor, x.split(16), "gates+ranges", config=config).save(tmp_path / "front.json")
    point = bb.Front.load(tmp_path / "front.json").points[0]
    assert point.ranges["0.input"].log_beta == ()
    fresh = bb.attach(model, torch.zeros(2, 4), spec)
    bb.restore(fresh, point)
    assert fresh.plan() == point.plan
    assert fresh.plan().bits["0.input"] == 8
    bb.restore(compressor, point)
    assert torch.equal(fresh.model(x), compressor.model(x))
