"""Gates: the distribution they are drawn from, its probability of being on, and the decision at test time."""

import math

import pytest
import torch

from bayesbits.functional import decide, gate_values, probability_on, sample_hard_concrete

LOGITS = torch.tensor([-4.0, -1.0, 0.0, 0.5, 2.0, 6.0])


def test_samples_are_on_with_the_stated_probability():
    uniform = torch.rand(200_000, 1, generator=torch.Generator().manual_seed(0))
    on = (sample_hard_concrete(LOGITS, uniform) > 0).float().mean(0)
    assert torch.allclose(on, probability_on(LOGITS), atol=5e-3)


def test_a_sample_by_hand():
    u, phi = 0.3, 0.5
    s = 1 / (1 + math.exp(-(math.log(u / (1 - u)) + phi) * 3 / 2))
    assert sample_hard_concrete(torch.tensor(phi), torch.tensor(u)).item() == pytest.approx(s * 1.2 - 0.1, rel=1e-6)


def test_exact_zero_and_exact_one_both_occur():
    z = sample_hard_concrete(torch.zeros(1), torch.rand(1000, generator=torch.Generator().manual_seed(0)))
    assert (z == 0).any()
    assert (z == 1).any()
    assert ((z > 0) & (z < 1)).any()


def test_the_decision_follows_the_probability_of_zero():
    boundary = 2 / 3 * math.log(0.1 / 1.1) - math.log(0.34 / 0.66)
    assert decide(torch.tensor([boundary - 1e-3, boundary + 1e-3])).tolist() == [False, True]


def test_gradients_reach_the_logits_also_of_a_gate_that_is_nearly_off():
    logits = torch.full((2000,), -3.0, requires_grad=True)
    sample_hard_concrete(logits, torch.rand(2000, generator=torch.Generator().manual_seed(0))).sum().backward()
    assert (logits.grad > 0).any()


def test_deterministic_gates_by_hand():
    s = torch.sigmoid(LOGITS)
    assert torch.equal(gate_values(LOGITS, "sigmoid"), s)
    assert torch.allclose(gate_values(LOGITS, "hard_sigmoid"), (s * 1.2 - 0.1).clamp(0, 1))


def test_a_gate_that_is_always_open_has_an_infinite_logit():
    logits = torch.tensor([math.inf], requires_grad=True)
    for kind in ("hard_concrete", "hard_sigmoid", "sigmoid"):
        value = gate_values(logits, kind)
        assert value.item() == 1
        (gradient,) = torch.autograd.grad(value, logits)
        assert gradient.item() == 0
    assert decide(logits).item()


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="hard_concrete, hard_sigmoid, sigmoid"):
        gate_values(LOGITS, "relu")


def test_bernoulli_gates_are_open_or_closed_and_have_no_gradient():
    logits = torch.tensor([0.0, 0.0, 9.0], requires_grad=True)
    values = gate_values(logits, "bernoulli", torch.tensor([0.83, 0.84, 0.999]))  # P(z > 0) = 0.8318 at 0
    assert values.tolist() == [1.0, 0.0, 1.0]
    assert not values.requires_grad
