"""What is read from a compressor: refused where it is not final, and rounded up to multiples of channels."""

import dataclasses

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.deploy.decision import read_decision, stored_decision
from tests.deploy.calls import check_close, rows, run
from tests.deploy.comparison import call, check_equal, mixed_plan
from tests.deploy.networks import SPEC, deployed, make
from tests.graph.networks import ROWS, DataDependent


def test_networks_in_half_precision_are_refused():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).bfloat16().eval()
    compressor = bb.attach(model, rows().bfloat16())
    compressor.calibrate([rows().bfloat16()])
    compressor.fix()
    with pytest.raises(ValueError, match=r"0\.weight is in bfloat16.*To fix this: model\.float\(\)"):
        bb.deploy(compressor)
    model.float()
    check_close(run(bb.deploy(compressor), rows()), run(model, rows()))


def test_what_is_not_final_is_refused():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).eval()
    compressor = bb.attach(model, rows())
    compressor.calibrate([rows()])
    with pytest.raises(ValueError, match=r"not final yet.*To fix this: compressor\.fix\(\)"):
        bb.deploy(compressor)
    with pytest.raises(TypeError, match="deploy takes the Compressor that attach returned, and this is a Sequential"):
        bb.deploy(model)


def test_what_cannot_be_deployed_is_said():
    model, inputs = make("residual")
    compressor = bb.attach(model, inputs, SPEC)
    with pytest.raises(ValueError, match="calibrate"):
        bb.deploy(compressor)
    _, small, inputs = deployed("residual")
    with pytest.raises(TypeError, match="takes the inputs x"):
        small(inputs, inputs)


@pytest.mark.filterwarnings("ignore:.*torch.export cannot take it")
def test_a_network_without_a_graph_is_refused_with_the_line_that_stands_in_the_way():
    compressor = bb.attach(DataDependent(), ROWS, SPEC)
    compressor.calibrate([ROWS])
    compressor.fix()
    message = r"^DataDependent cannot be deployed.*torch\.export cannot take it at graph/networks\.py:\d+ \(forward\)"
    with pytest.raises(ValueError, match=message):
        bb.deploy(compressor)


def test_rounding_up_keeps_the_function():
    compressor, exact, inputs = deployed("lenet5")
    rounded = bb.deploy(compressor, channel_multiple=8)
    channels = [[layer.weight_shape[0] for layer in small.integer.layers] for small in (exact, rounded)]
    assert channels == [[23, 45, 359, 10], [24, 48, 360, 10]]
    assert torch.equal(call(exact, inputs), call(rounded, inputs))
    with pytest.raises(ValueError, match="channel_multiple is 0"):
        bb.deploy(compressor, channel_multiple=0)


def test_channels_that_only_some_producers_drop_are_zeros_there():
    model, inputs = make("residual")
    compressor = bb.attach(model.eval(), inputs, SPEC)
    compressor.calibrate([inputs])
    plan = bb.Plan(mixed_plan(compressor.topology).bits, {"outer": (0, 2, 5)})
    compressor.fix(plan)
    small = bb.deploy(compressor)
    assert small.integer.structure.removed == ()
    assert not small.integer.codes("outer")[[1, 3, 4]].any()
    assert not small.integer.bias("outer")[[1, 3, 4]].any()
    assert small.integer.codes("outer")[[0, 2, 5]].any()
    check_equal(compressor, small, inputs)


def test_fixed_channels_are_deployed_as_they_are_whatever_multiple_was_asked_for():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 4))
    inputs = torch.randn(8, 3, 8, 8)
    compressor = bb.attach(model.eval(), inputs[:1], bb.Spec.for_backend("onnxruntime"))
    compressor.calibrate([inputs])
    plan = bb.Plan(bb.Plan.uniform(compressor.topology).bits, {"0": (0, 1, 2, 3, 4)})
    compressor.fix(plan)
    assert compressor.plan() == plan
    with torch.no_grad():
        torch.testing.assert_close(bb.deploy(compressor)(inputs), model(inputs), rtol=1e-4, atol=1e-5)


def test_a_stored_network_has_the_decision_that_it_was_deployed_by():
    compressor, small, _ = deployed("depthwise")
    read, stored = read_decision(compressor), stored_decision(compressor.model, small.integer)
    assert stored.removed == read.removed
    assert read.removed
    assert stored.grids == read.grids
    assert list(stored.weights) == list(read.weights)
    for name, weights in read.weights.items():
        assert stored.weights[name].bits == weights.bits
        assert torch.equal(stored.weights[name].codes, weights.codes)
        assert torch.equal(stored.weights[name].steps, weights.steps)
        grid = read.grids[compressor.topology.layer(name).activation]
        assert torch.equal(stored.weights[name].bias_codes(grid).double(), weights.bias_codes(grid))


def test_a_layer_is_zero_without_bits_or_without_weights():
    compressor, small, _ = deployed("depthwise")
    stored = stored_decision(compressor.model, small.integer)
    assert not stored.is_zero("expand")
    assert stored.is_zero("removed")
    stored.weights["expand"] = dataclasses.replace(stored.weights["expand"], bits=0)
    assert stored.is_zero("expand")
