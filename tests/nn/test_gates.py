"""Gates and their bank: all noise in one go, the same everywhere, continued exactly."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bayesbits.nn import ChannelGate, GateBank, GatedQuantizer, Gates


class Network(nn.Module):
    """Two quantizers and a channel gate, reading from a bank."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.first = GatedQuantizer(signed=True, beta=2.0)
        self.second = GatedQuantizer(signed=False, beta=2.0, zero=True)
        self.channels = ChannelGate(8)
        self.linear = nn.Linear(8, 8)
        self.bank = GateBank([self.first.gates, self.second.gates, self.channels.gates], seed=seed)
        with torch.no_grad():
            for member in self.bank.members:
                member.logits.fill_(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.bank.draw()
        return self.second(self.channels(self.linear(self.first(x))))


def test_one_draw_feeds_every_member_and_gradients_come_back():
    network, x = Network(), torch.randn(32, 8)
    (network(x) ** 2).sum().backward()
    assert [member().numel() for member in network.bank.members] == [5, 5, 8]
    assert network.first.gates()[0] == 1
    assert all(member.logits.grad is not None for member in network.bank.members)


def test_values_stay_the_same_until_the_next_draw():
    network = Network()
    network.bank.draw()
    before = network.channels.values()
    assert torch.equal(before, network.channels.values())
    network.bank.draw()
    assert not torch.equal(before, network.channels.values())


def test_equal_seeds_give_equal_noise_and_the_global_generator_is_left_alone():
    one, two, other = Network(1), Network(1), Network(2)
    state = torch.get_rng_state()
    for network in (one, two, other):
        network.bank.draw()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one.channels.values(), two.channels.values())
    assert not torch.equal(one.channels.values(), other.channels.values())


def test_a_state_dict_continues_the_noise_exactly():
    network = Network(3)
    for _ in range(3):
        network.bank.draw()
    resumed = Network(4)
    resumed.load_state_dict(network.state_dict())
    network.bank.draw()
    resumed.bank.draw()
    assert torch.equal(network.channels.values(), resumed.channels.values())


def test_evaluation_reads_the_decision_and_a_part_in_evaluation_only_its_own():
    network = Network().eval()
    network.bank.draw()
    assert torch.equal(network.channels.values(), torch.ones(8))
    network.train()
    network.channels.eval()
    network.bank.draw()
    assert torch.equal(network.channels.values(), torch.ones(8))
    assert ((network.second.gates() > 0) & (network.second.gates() < 1)).any()


def test_values_of_a_training_draw_are_not_used_in_evaluation():
    network = Network()
    network.bank.draw()
    network.eval()
    assert torch.equal(network.channels.values(), torch.ones(8))


def test_a_copy_has_a_bank_of_its_own_members():
    network = Network()
    network(torch.randn(4, 8)).sum().backward()
    other = copy.deepcopy(network)
    assert other.bank.members[0] is other.first.gates
    assert other.bank.members[0] is not network.first.gates
    other.bank.draw()
    assert other.channels.values().shape == (8,)


def test_different_kinds_share_a_bank():
    kinds = [Gates(3, kind=kind) for kind in ("hard_concrete", "hard_sigmoid", "sigmoid")]
    bank = GateBank(kinds, seed=0)
    bank.draw()
    assert torch.equal(kinds[2](), torch.sigmoid(kinds[2].logits))


def test_the_whole_step_with_its_draw_compiles_and_equals_eager():
    one, two = Network(5), Network(5)
    two.load_state_dict(one.state_dict())
    compiled = torch.compile(two, fullgraph=True)
    for _ in range(3):
        x = torch.randn(16, 8)
        expected, actual = one(x), compiled(x)
        torch.testing.assert_close(actual, expected)
        expected.sum().backward()
        actual.sum().backward()
    torch.testing.assert_close(two.channels.gates.logits.grad, one.channels.gates.logits.grad)
    assert torch.equal(one.bank.counter, two.bank.counter)


@pytest.mark.usefixtures("process_group")
def test_with_data_parallel_training_gradients_equal_those_of_one_process():
    plain = Network(7)
    parallel = DistributedDataParallel(copy.deepcopy(plain))
    x = torch.randn(16, 8)
    plain(x).sum().backward()
    parallel(x).sum().backward()
    for expected, actual in zip(plain.parameters(), parallel.module.parameters(), strict=True):
        assert torch.equal(expected.grad, actual.grad)
