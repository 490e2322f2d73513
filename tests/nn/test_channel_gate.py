"""Channel gates prune exactly, and a depthwise layer follows its producers."""

import pytest
import torch

from bayesbits.nn import ChannelGate


def test_a_channel_gate_alone_prunes_exactly_and_keeps_the_dtype():
    gate = ChannelGate(3)
    gate.fix([True, False, True])
    x = torch.randn(2, 3, 4, dtype=torch.bfloat16)
    y = gate(x)
    assert torch.equal(y[:, 0], x[:, 0])
    assert not y[:, 1].any()
    assert y.dtype == torch.bfloat16
    assert gate.kept().tolist() == [True, False, True]
    assert "keeps 2 of 3" in repr(gate)
    other = ChannelGate(3)
    other.load_state_dict(gate.state_dict())
    assert other.fixed
    assert torch.equal(other(x), y)
    other.learn()
    assert not other.fixed
    with pytest.raises(ValueError, match="3 channels need as many choices"):
        gate.fix([True])


def test_gating_the_last_axis():
    gate = ChannelGate(4)
    gate.fix([True, True, False, False])
    assert gate(torch.ones(2, 5, 4), axis=-1).sum() == 2 * 5 * 2
