"""RQ by hand: probabilities of logistic noise, the relaxed choice, and rounding at test time."""

import math

import pytest
import torch

from bayesbits.methods.rq import RqQuantizer, relaxed_rounding


def logistic(x):
    return 1 / (1 + math.exp(-x))


def mixture(position, noise, low, high, uniform):
    """The equations on numbers."""
    nearest = round(position)
    codes = [nearest + offset for offset in (-2, -1, 0, 1, 2)]
    weights = []
    for code, u in zip(codes, uniform, strict=True):
        mass = logistic((code + 0.5 - position) / noise) - logistic((code - 0.5 - position) / noise)
        score = (math.log(max(mass, 1e-7)) - math.log(-math.log(u))) / 2.0
        weights.append(math.exp(score) if low <= code <= high else 0.0)
    return sum(w * code for w, code in zip(weights, codes, strict=True)) / sum(weights)


UNIFORM = (0.3, 0.8, 0.5, 0.1, 0.6)


@pytest.mark.parametrize("position", [0.3, -1.4, 6.8, -7.0])
def test_forward_and_gradients(position):
    x, noise = torch.tensor([position], requires_grad=True), torch.tensor(1 / 3, requires_grad=True)
    y = relaxed_rounding(x, noise, -7, 7, [torch.tensor([u]) for u in UNIFORM])
    assert y.item() == pytest.approx(mixture(position, 1 / 3, -7, 7, UNIFORM), rel=1e-4, abs=1e-5)
    y.backward()

    def slope(f, at):
        return (f(at + 1e-5) - f(at - 1e-5)) / 2e-5

    by_x = slope(lambda value: mixture(value, 1 / 3, -7, 7, UNIFORM), position)
    by_noise = slope(lambda value: mixture(position, value, -7, 7, UNIFORM), 1 / 3)
    assert x.grad.item() == pytest.approx(by_x, rel=2e-3, abs=1e-4)
    assert noise.grad.item() == pytest.approx(by_noise, rel=2e-3, abs=1e-4)


def test_training_is_random_and_evaluation_rounds():
    made = RqQuantizer(weight=True, bits=(4,))
    made.set_range(7.5, signed=True)  # steps of 1
    x = torch.full((2000,), 0.4)
    drawn = made(x)
    assert drawn.std() > 0.1  # without noise all would be equal
    assert 0.2 < drawn.mean() < 0.6  # the mean is near x, where rounding gives 0
    assert not made.eval()(x).any()
    assert made(torch.tensor([9.0, -9.0, 2.6])).tolist() == pytest.approx([7.0, -7.0, 3.0])


def test_the_noise_starts_at_a_third_of_the_step():
    made = RqQuantizer(weight=True, bits=(4,))
    made.set_range(7.5, signed=True)
    assert made.log_noise.exp().item() == pytest.approx(1 / 3)  # in steps


def test_less_noise_is_nearer_to_rounding():
    made = RqQuantizer(weight=True, bits=(4,))
    made.set_range(7.5, signed=True)
    x = torch.full((2000,), 0.1)
    spread = made(x).std()
    with torch.no_grad():
        made.log_noise.fill_(math.log(0.02))
    assert made(x).std() < 0.2 * spread
