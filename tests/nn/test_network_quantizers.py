"""The quantizers and gates of a network: what learns, and what was frozen."""

import pytest
import torch

from bayesbits.nn import ChannelFollower, ChannelGate, GatedQuantizer
from bayesbits.nn.network_quantizers import NetworkQuantizers
from tests.nn.networks import Stem, attached


def test_gates_and_ranges_that_were_frozen_are_left_out_with_a_warning():
    model, x = Stem(), torch.randn(5, 8)
    compressor = attached(model, x)
    model.requires_grad_(False)
    with pytest.warns(UserWarning, match="were frozen") as warned:
        assert compressor.parameter_groups() == []
    assert [str(warning.message).partition(" were frozen")[0] for warning in warned] == [
        "4 of 4 gates",
        "3 of 3 ranges",
    ]
    compressor.calibrate([x])  # does not thaw them in passing
    compressor.attachment.requires_grad_(True)
    for quantizer in compressor.attachment.quantizers.values():
        quantizer.log_beta.requires_grad_(False)
    with pytest.warns(UserWarning, match="3 of 3 ranges were frozen"):
        groups = compressor.parameter_groups()
    assert [group["name"] for group in groups] == ["gates"]


def test_what_was_frozen_stays_frozen_when_a_state_is_loaded_and_when_it_is_fixed():
    model, x = Stem(), torch.randn(5, 8)
    compressor = attached(model, x)
    first, *others = [q for q in compressor.attachment.quantizers.values() if q.learn_range]
    first.log_beta.requires_grad_(False)
    first.gates.logits.requires_grad_(False)
    channels = next(iter(compressor.attachment.channel_gates.values()))
    channels.gates.logits.requires_grad_(False)
    model.load_state_dict(model.state_dict())
    assert not first.log_beta.requires_grad
    assert not first.gates.logits.requires_grad
    assert not channels.gates.logits.requires_grad
    assert all(other.log_beta.requires_grad for other in others)
    compressor.fix()
    assert not first.log_beta.requires_grad
    assert all(other.log_beta.requires_grad for other in others)


def owned() -> NetworkQuantizers:
    gate = ChannelGate(2)
    fixed = GatedQuantizer(signed=True, learn_range=False)
    fixed.fix(8)
    quantizers = {"a.b/c.weight": GatedQuantizer(signed=True), "input": fixed}
    return NetworkQuantizers(quantizers, {"a.b/c": gate}, {"a.depthwise": ChannelFollower([(gate, [0, 1])])})


def test_everything_is_found_by_the_name_of_its_tensor_or_layer():
    network = owned()
    assert list(network.quantizers) == ["a.b/c.weight", "input"]
    assert network.gate_of("a.b/c") is network.channel_gates["a.b/c"]
    assert isinstance(network.gate_of("a.depthwise"), ChannelFollower)
    assert network.gate_of("input") is None
    assert [len(member.logits) for member in network.bank.members] == [2, 4]  # channels first, nothing that is fixed
    assert "tensors./a/b~1c/weight.log_beta" in network.state_dict()


def test_what_learns_follows_the_modes():
    network = owned()
    learnable = network.learnable()
    assert list(learnable["gates"]) == ["a.b/c.weight", "the channels of a.b/c"]
    assert list(learnable["ranges"]) == ["a.b/c.weight"]
    network.channel_gates["a.b/c"].fix()
    network.quantizers["a.b/c.weight"].turn_off()
    assert network.learnable() == {"gates": {}, "ranges": {}}


def test_a_state_says_whether_ranges_are_known_and_floats_stay_single():
    network, other = owned(), owned()
    with pytest.raises(RuntimeError, match=r"call compressor\.calibrate"):
        network.before_forward()
    network.calibrated = True
    other.load_state_dict(network.state_dict())
    assert other.calibrated
    other.before_forward()
    assert other.in_pass
    assert other.bank.counter[1] == 1
    other.after_forward()
    assert not other.in_pass
    assert {parameter.dtype for parameter in other.to(torch.bfloat16).parameters()} == {torch.float32}
    assert {parameter.device.type for parameter in other.to("meta").parameters()} == {"meta"}
