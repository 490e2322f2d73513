"""REINFORCE by hand: gates that are 0 or 1, and a gradient from the loss less a baseline."""

import pytest
import torch

import bayesbits as bb
from bayesbits.functional import probability_on
from bayesbits.functional.gates import gate_values
from bayesbits.methods.reinforce import ScoreFunction, log_probability
from bayesbits.nn import GateBank, Gates
from tests.methods.quantizers import IMAGES, network


def bank(logits):
    gates = Gates(len(logits), kind="bernoulli", open_first=True)
    gates.logits.data = torch.tensor(logits)
    return gates, GateBank([gates], seed=3)


def test_gates_are_zero_or_one_with_their_probability():
    logits = torch.full((20000,), -0.5)
    values = gate_values(logits, "bernoulli")
    assert set(values.unique().tolist()) == {0.0, 1.0}
    assert values.mean().item() == pytest.approx(probability_on(torch.tensor(-0.5)).item(), abs=0.02)
    drawn = gate_values(torch.tensor([0.0, 0.0]), "bernoulli", torch.tensor([0.5, 0.9]))
    assert drawn.tolist() == [1.0, 0.0]  # the probability is 0.83


def test_the_gradient_is_loss_less_baseline_times_value_less_probability():
    gates, drawing = bank([0.5, -2.0, -1.0])
    drawing.draw()
    values = gates()[1:]
    drawing.end_pass()
    score = ScoreFunction()
    score(torch.tensor(2.0), drawing)  # the first loss is the baseline
    assert score.baseline.item() == pytest.approx(2.0)
    term = score(torch.tensor(5.0), drawing)
    assert term.item() == 0.0  # the loss that is reported stays the task's
    term.backward()
    expected = (5.0 - 2.0) * (values - probability_on(torch.tensor([0.5, -2.0, -1.0])))
    torch.testing.assert_close(gates.logits.grad, expected)
    assert score.baseline.item() == pytest.approx(0.9 * 2.0 + 0.1 * 5.0)


def test_without_the_baseline_a_constant_loss_would_push_the_gates():
    gates, drawing = bank([0.5, -2.0])
    score = ScoreFunction()
    for _ in range(3):
        drawing.draw()
        drawing.end_pass()
        score(torch.tensor(4.0), drawing).backward()
    assert not gates.logits.grad.any()
    log_probability(drawing).backward()
    assert bool(gates.logits.grad.any())


def test_the_expected_gradient_is_that_of_the_expected_loss():
    """One gate and the loss 1 if it is open, 0 if not: dE/dphi = p (1 - p)."""
    gates, drawing = bank([-1.5])
    score, steps = ScoreFunction(), 4000
    for _ in range(steps):
        drawing.draw()
        value = gates()[1]
        drawing.end_pass()
        score(value.detach(), drawing).backward()
    p = probability_on(torch.tensor(-1.5)).item()
    assert gates.logits.grad.item() / steps == pytest.approx(p * (1 - p), rel=0.15)


def test_a_network_has_the_term_in_its_loss_until_widths_are_fixed():
    torch.manual_seed(0)
    compressor = bb.attach(network(), IMAGES[:1], bb.Spec(method="reinforce"))
    compressor.calibrate([IMAGES])
    logits = compressor.attachment.quantizers["3.weight"].gates.logits
    with torch.no_grad():
        for name in ("3.weight", "3.input"):
            compressor.attachment.quantizers[name].gates.logits.fill_(-1.0)
    for _ in range(2):
        loss = compressor.model(IMAGES).square().mean()
        (loss + compressor.method_loss(loss)).backward()
    assert bool(logits.grad.any())
    compressor.fix()
    assert compressor.method_loss(torch.tensor(1.0)).item() == 0.0
    assert compressor.attachment.method_loss(torch.tensor(1.0)) is None


def test_users_cannot_choose_such_gates_for_our_own_method():
    with pytest.raises(ValueError, match="hard_concrete"):
        bb.Spec(gates="bernoulli")
