"""The quantizers and gates of a network: what learns, and what was frozen."""

import pytest
import torch

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
