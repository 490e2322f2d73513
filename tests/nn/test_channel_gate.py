"""Channel gates prune exactly, and a depthwise layer follows its producers."""

import pytest
import torch

from bayesbits.nn import ChannelFollower, ChannelGate


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


def test_a_follower_is_on_where_any_producer_is():
    first, second = ChannelGate(2), ChannelGate(3)
    first.fix([True, False])
    second.fix([False, True, False])
    # Channels: of the first's 0, of its 1 and the second's 0, of the second's 1, of nobody, and of one without a gate.
    follower = ChannelFollower([(first, [0, 1, -1, -1, -1]), (second, [-1, 0, 1, -1, 2]), (None, [-1, -1, -1, -1, 0])])
    assert follower.values().tolist() == [1.0, 0.0, 1.0, 1.0, 1.0]


def test_a_follower_of_soft_gates_is_off_only_where_all_are():
    gates = [ChannelGate(1, gates="sigmoid"), ChannelGate(1, gates="sigmoid")]
    for gate, logit in zip(gates, (0.0, 1.0), strict=True):
        torch.nn.init.constant_(gate.gates.logits, logit)
    off = 0.5 * (1 - 1 / (1 + 2.718281828459045**-1))
    assert ChannelFollower([(gate, [0]) for gate in gates]).values().item() == pytest.approx(1 - off)


def test_channels_that_may_not_close_stay():
    gate = ChannelGate(3, may_close=[True, False, True])
    torch.nn.init.constant_(gate.gates.logits, -6.0)
    assert gate.kept().tolist() == [False, True, False]
    assert gate.eval().values().tolist() == [0.0, 1.0, 0.0]


def test_the_channels_of_a_block_have_one_gate():
    gate = ChannelGate(6, blocks=[7, 7, 7, 3, 3, -1], deciding=[False, True, True, True, True, True])
    assert gate.gates.logits.shape == (3,)
    assert gate.channels == 6
    assert gate.gate_numbers == [0, 0, 0, 1, 1, 2]
    assert gate.spread(torch.tensor([1.0, 2.0, 3.0])).tolist() == [1, 1, 1, 2, 2, 3]
    assert gate.by_gate(torch.tensor([False, False, False, True, True, False])).tolist() == [False, True, False]
    with torch.no_grad():
        gate.gates.logits.copy_(torch.tensor([-6.0, 6.0, -6.0]))
    assert gate.eval().kept().tolist() == [False, False, False, True, True, False]
    assert gate.values().tolist() == [1, 0, 0, 1, 1, 0]  # what only follows is not multiplied while gates learn
    gate.fix()
    assert gate.values().tolist() == [0, 0, 0, 1, 1, 0]
    gate.values().sum()
    gate.fix([True, True, True, False, False, True])
    assert gate.kept().tolist() == [True, True, True, False, False, True]


def test_the_gate_of_a_block_learns_from_all_of_its_channels():
    gate = ChannelGate(5, gates="sigmoid", blocks=[0, 0, 0, 1, 1])
    (gate.values() * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])).sum().backward()
    first, second = gate.gates.logits.grad.tolist()
    assert first / second == pytest.approx(6 / 9)


def test_a_follower_of_values_waits_until_they_are_final():
    gate = ChannelGate(4, blocks=[0, 0, 1, 1])
    follower = ChannelFollower([(gate, [0, 0, 2, 2])], when_fixed=True)
    assert follower.idle
    gate.fix([True, True, False, False])
    assert not follower.idle
    assert follower.values().tolist() == [1, 1, 0, 0]


def test_a_state_from_before_blocks_had_gates_keeps_them():
    modules = torch.nn.ModuleDict({"heads": ChannelGate(4, blocks=[0, 0, 1, 1]), "plain": ChannelGate(2)})
    state = {name: value for name, value in modules.state_dict().items() if not name.startswith("heads")}
    torch.nn.init.constant_(modules["heads"].gates.logits, -6.0)
    modules.load_state_dict(state)
    assert modules["heads"].fixed
    assert modules["heads"].kept().all()
    assert not modules["plain"].fixed
    with pytest.raises(RuntimeError, match=r"Missing key.*plain\.gates\.logits"):
        modules.load_state_dict({})
