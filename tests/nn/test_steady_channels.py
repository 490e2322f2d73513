"""Steady channels: a constant in front of a batch norm of its own is not multiplied by hundreds after rounding."""

import copy

import pytest
import torch
from torch import Tensor

import bayesbits as bb
from bayesbits.nn import GatedQuantizer
from bayesbits.nn.steady_channels import ChannelRun, SteadyChannels
from tests.nn.pre_activation import DEAD, IMAGES, PreActivation, fixed


def distance(one: Tensor, other: Tensor) -> float:
    return ((one - other).norm() / other.norm()).item()


@torch.no_grad()
def test_a_dead_channel_costs_nothing_and_the_file_has_it_too(tmp_path):
    model = PreActivation()
    in_float = model(IMAGES)
    compressor = fixed(model)
    assert distance(model(IMAGES), in_float) < 0.03
    for norm in (model.norm1, model.norm2):
        scale = norm.effective_scale()
        assert scale[DEAD] == 0.0
        assert (scale == norm.weight).sum() == len(scale) - 1  # all others are as they were
        norm.parts.steady = None
    assert distance(model(IMAGES), in_float) > 0.1  # what it would be
    model.norm1.parts.steady, model.norm2.parts.steady = compressor.attachment.steady_channels.values()
    small = bb.deploy(compressor)
    torch.testing.assert_close(small(IMAGES), model(IMAGES), rtol=0, atol=1e-3)
    bb.export_onnx(small, IMAGES, tmp_path / "network.onnx")
    bb.verify(compressor, small, tmp_path / "network.onnx", IMAGES)
    assert model.norm1.weight[DEAD] > 0.4  # the network itself is not changed


@torch.no_grad()
def test_the_float_network_and_training_are_not_changed():
    model = PreActivation()
    other = copy.deepcopy(model)
    compressor = fixed(model)
    x = torch.rand(4, 8, 4, 4)
    torch.testing.assert_close(copy.deepcopy(model.norm1).train()(x), copy.deepcopy(other.norm1).train()(x))
    for quantizer in compressor.attachment.quantizers.values():
        quantizer.turn_off()
    torch.testing.assert_close(model(IMAGES), other(IMAGES))


def test_extremes_are_in_the_state_and_files_without_them_load():
    model = PreActivation()
    fixed(model)
    state = model.state_dict()
    others = [fixed(PreActivation()) for _ in range(2)]
    channels = others[0].attachment.steady_channels["norm1"]
    channels.see(torch.full((8,), -9.0), torch.full((8,), 9.0))
    others[0].model.load_state_dict(state)
    assert channels.mask(model.norm1.running_mean, model.norm1.running_var).nonzero().tolist() == [[DEAD]]
    earlier = {key: value for key, value in state.items() if not key.endswith((".low", ".high"))}
    assert len(earlier) == len(state) - 4
    others[1].model.load_state_dict(earlier)
    channels = others[1].attachment.steady_channels["norm1"]
    assert not channels.mask(model.norm1.running_mean, model.norm1.running_var).any()


def channels(bits: int = 8, size: int = 6) -> SteadyChannels:
    """Channels with a step of 0.1, the last two without a quantizer."""
    quantizer = GatedQuantizer(signed=False, beta=0.1 * (2**bits - 1), bits=(bits,))
    quantizer.fix(bits)
    return SteadyChannels([ChannelRun((quantizer,), size - 2), ChannelRun((), 2)])


@pytest.mark.parametrize("bits", [4, 8])
def test_a_channel_is_steady_within_half_a_step(bits):
    found = channels(bits)
    mean, variance = torch.full((6,), 0.73), torch.full((6,), 1e-4)
    assert not found.mask(mean, variance).any()  # nobody has looked
    found.see(mean - torch.tensor([0.04, 0.06, 0.0, 0.0, 0.0, 0.0]), mean + torch.tensor([0.04, 0.0, 0.06, 0, 0, 0]))
    variance[3] = 0.06**2  # more than was seen: the data of calibration are not like those of training
    assert found.mask(mean, variance).tolist() == [True, False, False, False, False, False]
    assert found.mask(mean + 0.02, variance).tolist()[0] is False  # the mean has moved away
    assert found.mask(mean.double(), variance.double()).tolist()[0] is True


def test_nothing_is_steady_before_widths_are_final():
    found = channels()
    found.see(torch.zeros(6), torch.zeros(6))
    assert found.mask(torch.zeros(6), torch.zeros(6)).tolist() == [True] * 4 + [False] * 2
    (quantizer,) = found.runs[0].quantizers
    quantizer.fix(0)
    assert not found.mask(torch.zeros(6), torch.zeros(6)).any()  # without bits there is no step
    quantizer.turn_off()
    assert found.mask(torch.zeros(6), torch.zeros(6)) is None
