"""LSQ by hand: its equations on a few numbers."""

import pytest
import torch

from bayesbits.methods.lsq import LsqQuantizer


def quantizer(weight, bits=4, step=0.5):
    made = LsqQuantizer(weight=weight, bits=(bits,))
    with torch.no_grad():
        made.scale.fill_(step)
    made.set_kind("symmetric" if weight else "unsigned")
    return made


def test_forward_and_gradients_of_a_weight():
    """s = 0.5, codes -7..7: x / s = 0.6, -1.8, 8, -9, so that codes are 1, -2, 7, -7."""
    made, x = quantizer(weight=True), torch.tensor([0.3, -0.9, 4.0, -4.5], requires_grad=True)
    y = made(x)
    assert y.tolist() == pytest.approx([0.5, -1.0, 3.5, -3.5])
    y.backward(torch.tensor([1.0, 1.0, 1.0, 2.0]))
    assert x.grad.tolist() == [1.0, 1.0, 0.0, 0.0]
    # (1 - 0.6) + (-2 + 1.8) + 7 - 2 * 7, times g = 1 / sqrt(4 * 7)
    assert made.scale.grad.item() == pytest.approx((0.4 - 0.2 + 7 - 14) / 28**0.5, rel=1e-5)


def test_an_activation_counts_the_features_of_one_example():
    """Unsigned codes 0..15, 2 examples of 3 features: g = 1 / sqrt(3 * 15)."""
    made = quantizer(weight=False)
    x = torch.tensor([[0.3, -1.0, 9.0], [0.0, 0.7, 1.1]], requires_grad=True)
    y = made(x)
    assert y.flatten().tolist() == pytest.approx([0.5, 0.0, 7.5, 0.0, 0.5, 1.0])
    y.sum().backward()
    assert x.grad.flatten().tolist() == [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert made.scale.grad.item() == pytest.approx((0.4 + 0.0 + 15 + 0.0 - 0.4 - 0.2) / 45**0.5, rel=1e-5)


def test_the_step_starts_at_twice_the_mean_magnitude_over_the_root_of_the_largest_code():
    made = quantizer(weight=True)
    made.start(torch.tensor([1.0, -2.0, 3.0, 0.0]))
    assert made.scale.item() == pytest.approx(2 * 1.5 / 7**0.5)
    made.start(torch.zeros(4))  # a dead tensor leaves the step usable
    assert made.scale.item() == pytest.approx(2 * 1.5 / 7**0.5)


def test_the_gradient_scale_makes_the_update_of_the_step_independent_of_the_size():
    """The same values sixteen times: without g the gradient of s would be 16 times as large, with g it is 4 times."""
    gradients = []
    for copies in (1, 16):
        made = quantizer(weight=True)
        made(torch.tensor([0.3, -0.9, 4.0, 0.6]).repeat(copies)).sum().backward()
        gradients.append(made.scale.grad.item())
    assert gradients[1] / gradients[0] == pytest.approx(4.0, rel=1e-4)


def test_the_range_ends_half_a_step_behind_the_last_signed_code():
    made = quantizer(weight=True)
    assert made.beta.item() == pytest.approx(7.5 * 0.5)
    assert made.step().item() == pytest.approx(0.5)
    made.set_range(3.0, signed=False)
    assert made.scale.item() == pytest.approx(3.0 / 15)
