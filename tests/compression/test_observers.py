"""Observing leaves a network as it was, but for batch norms that have never run."""

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.compression.calibration import calibrate_activations
from bayesbits.compression.observers import channels_seen, observing
from bayesbits.compression.range_estimation import METHODS
from bayesbits.compression.statistics import measure_statistics
from bayesbits.nn import GatedQuantizer
from bayesbits.nn.steady_channels import ChannelRun, SteadyChannels
from bayesbits.records.topology import Clip
from tests.compression.calibrated import Net, batch
from tests.deploy.exported import Function


@pytest.mark.parametrize("method", METHODS)
def test_ranges_come_from_the_float_network_and_modes_flags_buffers_and_hooks_stay(method):
    net = Net()
    net.first.fix(8)
    net.second.turn_off()
    net.unused.set_range(0.5)
    net.norm.eval()
    buffers = {name: value.clone() for name, value in net.named_buffers()}
    asked = [(None, p.requires_grad) for p in net.parameters()]
    calibrate_activations(net, net.quantizers(), [batch(0.3, 0.9), batch(1.0)], method=method, percentile=100)
    assert (net.first.mode, net.first.fixed_bits, net.second.mode) == ("fixed", 8, "off")
    assert net.unused.mode == "learning"
    assert net.training
    assert net.second.training
    assert not net.norm.training
    assert not net.first._forward_pre_hooks
    assert all(torch.equal(value, buffers[name]) for name, value in net.named_buffers())
    assert [(p.grad, p.requires_grad) for p in net.parameters()] == asked
    assert net.first.beta.item() == net.second.beta.item() != 7.0


def test_an_error_in_the_network_leaves_it_as_it_was():
    net = Net()
    with pytest.raises(RuntimeError):
        calibrate_activations(net, net.quantizers(), [torch.ones(2, 3)])
    assert net.first.mode == "learning"
    assert net.training
    assert not net.first._forward_pre_hooks


def test_batch_norms_that_have_never_run_take_their_statistics_from_the_batches():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), GatedQuantizer(signed=True))
    batches = [torch.randn(32, 4) * 5 + 3 for _ in range(4)]
    calibrate_activations(net, {"2": net[2]}, batches)
    outputs = torch.stack([net[0](batch) for batch in batches])
    torch.testing.assert_close(net[1].running_mean, outputs.mean((0, 1)), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(net[1].running_var, outputs.var(1).mean(0), rtol=1e-4, atol=1e-4)
    assert net[1].momentum == 0.1
    assert not net[1]._forward_pre_hooks
    assert 2 < net[2].beta.item() < 5  # of normalized values; with mean 0 and variance 1 it would be far more
    before = net[1].running_mean.clone()
    calibrate_activations(net, {"2": net[2]}, [torch.randn(32, 4)])
    assert torch.equal(net[1].running_mean, before)


def test_statistics_that_were_loaded_without_their_counter_are_kept():
    """Files from before torch 0.4.1 have no `num_batches_tracked`, and a network that loads one counts 0 batches."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    trained = {"1.running_mean": torch.tensor([1.0, 2, 3, 4]), "1.running_var": torch.tensor([5.0, 6, 7, 8])}
    model.load_state_dict(trained, strict=False)
    compressor = bb.attach(model, torch.randn(1, 3, 4, 4))
    compressor.calibrate([torch.randn(8, 3, 4, 4)])
    for name, value in trained.items():
        assert torch.equal(model.state_dict()[name], value)


def test_observers_see_what_their_quantizers_get_and_are_gone_afterwards():
    quantizers = {"a": GatedQuantizer(signed=True), "b": GatedQuantizer(signed=True)}
    seen: dict[str, list[float]] = {"a": [], "b": []}
    hooks = {name: lambda _, inputs, name=name: seen[name].append(inputs[0].item()) for name in quantizers}
    with observing(quantizers, hooks):
        quantizers["a"](torch.tensor(3.0))
        quantizers["b"](torch.tensor(0.5))
    with pytest.raises(ZeroDivisionError), observing(quantizers, hooks):
        raise ZeroDivisionError
    quantizers["a"](torch.tensor(7.0))
    assert seen == {"a": [3.0], "b": [0.5]}


def test_an_observer_does_not_see_what_is_clipped_behind_the_quantizer():
    seen = {}
    quantizers = {name: GatedQuantizer(signed=True) for name in ("a.output", "b.output", "c.output")}
    observers = {name: lambda _, inputs, name=name: seen.update({name: inputs}) for name in quantizers}
    clips = [Clip("a.output", 0.0, None), Clip("b.output", None, 0.5), Clip("absent.output", 0.0, 1.0)]
    x = torch.tensor([-2.0, 0.25, 3.0])
    with observing(quantizers, observers, clips):
        rounded = {name: quantizer(x) for name, quantizer in quantizers.items()}
    assert {name: inputs[0].tolist() for name, inputs in seen.items()} == {
        "a.output": [0.0, 0.25, 3.0], "b.output": [-2.0, 0.25, 0.5], "c.output": [-2.0, 0.25, 3.0]
    }  # fmt: skip
    assert torch.equal(rounded["a.output"], rounded["c.output"])


def test_a_relu_behind_a_quantizer_leaves_its_range_without_negative_values():
    torch.manual_seed(0)
    first, last = nn.Conv2d(2, 4, 1), nn.Conv2d(4, 2, 1)
    net = Function(lambda own, x: own.last(nn.functional.gelu(own.first(x).relu())), first=first, last=last)
    x = torch.randn(4, 2, 5, 5)
    compressor = bb.attach(net.eval(), x, bb.Spec.for_backend("onnxruntime"))
    compressor.calibrate([x])
    quantizer = compressor.attachment.quantizers["first.output"]
    assert (quantizer.signed, quantizer.alpha) == (False, None)
    assert quantizer.beta.item() == pytest.approx(first(x).max().item(), rel=0.01)
    compressor.fix(bb.Plan.uniform(compressor.topology, residual_bits=8))
    (found,) = [one for one in measure_statistics(compressor, x).tensors if one.name == "first.output"]
    assert found.low == 0.0
    assert found.clipped < 0.5  # percent: rounding moves one of 400 values behind the end


def test_channels_know_their_extremes_over_all_batches_and_keep_them_where_the_block_raised():
    model, channels = nn.Sequential(nn.BatchNorm2d(2)).eval(), SteadyChannels([ChannelRun((), 2)])
    first = torch.stack([torch.full((2, 3, 3), -1.0), torch.full((2, 3, 3), 4.0)], dim=1)
    second = torch.stack([torch.full((4, 5, 5), 2.0), torch.full((4, 5, 5), 3.0)], dim=1)
    with channels_seen(model, {"0": channels}):
        model(first)
        model(second)
    assert (channels.low.tolist(), channels.high.tolist()) == ([-1.0, 3.0], [2.0, 4.0])
    before = channels.high.clone()
    model.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), channels_seen(model, {"0": channels}):
        model(first + 100)
    assert torch.equal(channels.high, before)
