"""Measuring a diagnosis: numbers computed by hand, and a network that is left exactly as it was."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from bayesbits.compression.diagnosis import Diagnosis
from bayesbits.compression.diagnosis_measurement import diagnose
from bayesbits.nn import ChannelGate, GateBank, GatedQuantizer


class Net(nn.Module):
    """Everything that a diagnosis could disturb: batch norm, dropout, channel gates, quantizers in several modes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.weight_quantizer = GatedQuantizer(signed=True, beta=[0.4] * 4)
        self.input_quantizer = GatedQuantizer(signed=True, beta=2.0)
        self.fixed_quantizer = GatedQuantizer(signed=True, beta=2.0)
        self.fixed_quantizer.fix(3)
        self.unused_quantizer = GatedQuantizer(signed=True, beta=2.0)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)
        self.gate = ChannelGate(4)

    def forward(self, x):
        weight = self.weight_quantizer(self.layer.weight)
        x = nn.functional.linear(self.input_quantizer(x), weight, self.layer.bias)
        return self.fixed_quantizer(self.dropout(self.gate(self.norm(x))))

    def quantizers(self):
        return {
            "input": self.input_quantizer,
            "layer.weight": self.weight_quantizer,
            "output": self.fixed_quantizer,
            "unused": self.unused_quantizer,
        }

    def penalty(self):
        return sum(quantizer.gates.probability_on().sum() for quantizer in self.quantizers().values())


def data(count: int = 2) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(8, 6, generator=generator), torch.ones(8, 4)) for _ in range(count)]


def loss_fn(output, target):
    return nn.functional.mse_loss(output, target)


def one_gate(**changes) -> tuple[GatedQuantizer, Diagnosis]:
    """A quantizer of 2 and 4 bits on two values, with a gate of no noise at an even chance."""
    quantizer = GatedQuantizer(signed=False, beta=1.0, bits=(2, 4), gates="sigmoid")
    with torch.no_grad():
        quantizer.gates.logits.fill_(changes.get("logit", 1.0))
    batches = [(torch.tensor([0.29, 0.94]), torch.tensor([1.0, 2.0])), (torch.tensor([0.29, 1.5]), torch.zeros(2))]
    return quantizer, diagnose(
        quantizer,
        {"x": quantizer},
        lambda: changes.get("weight", 0.5) * quantizer.gates.probability_on().sum(),
        batches,
        lambda output, slope: (output * slope).sum(),
    )


def test_gradients_and_probabilities_by_hand():
    _, diagnosis = one_gate()
    (found,) = diagnosis.tensors
    z = 1 / (1 + math.exp(-1.0))
    on = 1 / (1 + math.exp(-(1.0 + 2 / 3 * math.log(11))))
    # 2 bits: 0.29 -> 1/3, 0.94 -> 1. 4 bits: 0.29 -> 4/15, 0.94 -> 14/15. Batch 2 adds zero.
    slope = 1.0 * (4 / 15 - 1 / 3) + 2.0 * (14 / 15 - 1)
    assert found.task_gradient == {4: pytest.approx(slope * z * (1 - z) / 2, rel=1e-4)}
    assert found.penalty_gradient == {4: pytest.approx(0.5 * on * (1 - on), rel=1e-4)}
    assert found.probability_on == {4: pytest.approx(on)}
    assert (found.name, found.bits, found.mode) == ("x", 4, "learning")
    assert found.beta == pytest.approx(1.0)


def test_signal_to_noise_and_clipping_by_hand():
    (found,) = one_gate()[1].tensors
    values = [0.29, 0.94, 0.29, 1.5]
    signal = sum(value**2 for value in values)
    noise = {
        width: sum((value - point) ** 2 for value, point in zip(values, points, strict=True))
        for width, points in {2: [1 / 3, 1, 1 / 3, 1], 4: [4 / 15, 14 / 15, 4 / 15, 1]}.items()
    }
    assert found.signal_to_noise == {
        width: pytest.approx(10 * math.log10(signal / noise[width]), abs=1e-3) for width in noise
    }
    assert found.clipped == 25.0


def test_the_signal_to_noise_ratio_grows_by_six_decibels_a_bit():
    quantizer = GatedQuantizer(signed=True, beta=1.0)
    x = torch.rand(4096, generator=torch.Generator().manual_seed(0)) * 2 - 1
    (found,) = diagnose(quantizer, {"x": quantizer}, quantizer.gates.probability_on().sum, [(x, x)], loss_fn).tensors
    assert list(found.signal_to_noise) == [2, 4, 8, 16, 32]
    assert found.signal_to_noise[8] - found.signal_to_noise[4] == pytest.approx(24.1, abs=1.0)
    assert found.signal_to_noise[32] > 130


def test_ranges_by_channel_are_applied_by_channel():
    quantizer = GatedQuantizer(signed=True, beta=[1.0, 100.0])
    x = torch.tensor([[1.5, 0.5], [60.0, -99.0]])
    (found,) = diagnose(quantizer, {"w": quantizer}, quantizer.gates.probability_on().sum, [(x, x)], loss_fn).tensors
    assert found.clipped == 25.0
    assert found.beta == pytest.approx(100.0)


def test_noise_is_averaged_over_draws():
    quantizer = GatedQuantizer(signed=True, beta=1.0, bits=(2, 4))
    with torch.no_grad():
        quantizer.gates.logits.fill_(0.0)
    x = torch.tensor([0.15])
    torch.manual_seed(0)
    few, many = (
        diagnose(quantizer, {"x": quantizer}, lambda: torch.zeros(()), [(x, x)], lambda y, _: y.sum(), draws=draws)
        for draws in (1, 400)
    )
    u = torch.linspace(1e-5, 1 - 1e-5, 100_001, dtype=torch.float64)
    s = torch.sigmoid(torch.logit(u) / (2 / 3))
    inside = (s * 1.2 - 0.1 > 0) & (s * 1.2 - 0.1 < 1)
    slope = (s * (1 - s) * 1.5 * 1.2 * inside).mean().item() * (2 / 15)  # 0.15 rounds to 0 and to 2/15
    assert many.tensors[0].task_gradient[4] == pytest.approx(slope, rel=0.1)
    assert few != many


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("bank_in_a_hook", [True, False])
def test_a_diagnosis_changes_nothing(training, bank_in_a_hook):
    net = Net()
    if bank_in_a_hook:
        net.bank = GateBank([net.input_quantizer.gates, net.weight_quantizer.gates, net.gate.gates])
        net.register_forward_pre_hook(lambda module, _: module.bank.draw())
    net.train(training)
    net.norm.train(not training)
    net(data()[0][0]).sum().backward()
    grads = {name: copy.copy(p.grad) if p.grad is None else p.grad.clone() for name, p in net.named_parameters()}
    pending = net(data()[0][0]).sum()
    state = copy.deepcopy(net.state_dict())
    flags = [module.training for module in net.modules()]
    drawn = net.input_quantizer.gates._drawn
    random = torch.get_rng_state()

    diagnosis = diagnose(net, net.quantizers(), net.penalty, data(), loss_fn)

    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in net.modules()] == flags
    assert net.input_quantizer.gates._drawn is drawn
    assert not net.input_quantizer._forward_pre_hooks
    assert (net.fixed_quantizer.mode, net.fixed_quantizer.fixed_bits) == ("fixed", 3)
    for name, value in net.state_dict().items():
        assert torch.equal(value, state[name]), name
    for name, parameter in net.named_parameters():
        before = grads[name]
        assert parameter.grad is None if before is None else torch.equal(parameter.grad, before), name
    assert diagnose(net, net.quantizers(), net.penalty, data(), loss_fn) == diagnosis
    pending.backward()  # a graph from before can still be used


def test_it_runs_where_gradients_are_switched_off_and_parameters_are_frozen():
    net = Net()
    net.input_quantizer.gates.logits.requires_grad_(False)
    with torch.no_grad():
        diagnosis = diagnose(net, net.quantizers(), net.penalty, data(), loss_fn)
    frozen, learning, *_ = diagnosis.tensors
    assert set(frozen.penalty_gradient.values()) == {0.0}
    assert all(value > 0 for value in learning.penalty_gradient.values())


def test_one_quantizer_under_two_names():
    net = Net()
    names = {"a": net.input_quantizer, "b": net.input_quantizer}
    first, second = diagnose(net, names, net.penalty, data(), loss_fn).tensors
    assert replace(second, name="a") == first


def test_fixed_unused_and_off():
    net = Net()
    net.input_quantizer.turn_off()
    off, _, fixed, unused = diagnose(net, net.quantizers(), net.penalty, data(), loss_fn).tensors
    assert off.verdict == "off: it passes unchanged"
    assert fixed.verdict == "fixed at 3 bits"
    assert 3 in fixed.signal_to_noise
    assert unused.verdict == "no values reached it"
    assert unused.signal_to_noise == {}


def test_a_quantizer_without_gates_says_so():
    quantizer = GatedQuantizer(signed=True, beta=9.0, bits=(8,))
    (found,) = diagnose(quantizer, {"x": quantizer}, lambda: torch.zeros(()), data(), lambda y, _: y.sum()).tensors
    assert found.verdict == "it has no gate"


def test_a_gate_that_starts_open_is_found_saturated():
    quantizer = GatedQuantizer(signed=True, beta=3.0, gates="hard_sigmoid")
    penalty = quantizer.gates.probability_on
    (found,) = diagnose(quantizer, {"x": quantizer}, lambda: penalty().sum(), data(), lambda y, _: y.sum()).tensors
    assert found.verdict.startswith("32: gate is saturated open: no gradient of the task")


@pytest.mark.parametrize(
    ("batches", "loss", "error", "message"),
    [
        ([], loss_fn, ValueError, "at least one batch"),
        (data(), lambda y, _: y.sum() / 0, ValueError, r"the loss of batch 0 .* is (inf|-inf|nan)"),
        (data(), lambda y, _: y, ValueError, "must be a tensor with one number"),
        (data(), lambda y, _: 1.0, ValueError, "must be a tensor with one number"),
        ([torch.ones(2, 6)], loss_fn, TypeError, "pairs of inputs and targets, got Tensor"),
    ],
)
def test_errors_say_what_is_wrong_and_leave_the_network_as_it_was(batches, loss, error, message):
    net = Net()
    random = torch.get_rng_state()
    with pytest.raises(error, match=message):
        diagnose(net, net.quantizers(), net.penalty, batches, loss)
    assert all(module.training for module in net.modules())
    assert torch.equal(torch.get_rng_state(), random)
    assert not net.input_quantizer._forward_pre_hooks


def test_draws_and_penalty_are_checked():
    net = Net()
    with pytest.raises(ValueError, match="draws=0"):
        diagnose(net, net.quantizers(), net.penalty, data(), loss_fn, draws=0)
    with pytest.raises(ValueError, match="the penalty is nan"):
        diagnose(net, net.quantizers(), lambda: net.penalty() * math.nan, data(), loss_fn)
