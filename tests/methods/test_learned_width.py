"""A learned step with a learned width, by hand."""

import math

import pytest
import torch

from bayesbits.methods.learned_width import LearnedWidthQuantizer


def quantizer(weight, step, width):
    made = LearnedWidthQuantizer(weight=weight, bits=(2, 4, 8))
    made.set_kind("symmetric" if weight else "unsigned")
    with torch.no_grad():
        made.log2_step.fill_(math.log2(step))
        made.width.fill_(width)
    return made


def test_forward_and_gradients_of_a_weight():
    """d = 0.5, b = 3: codes -3..3; 0.3 and -0.9 are inside, 4 and -4.5 beyond."""
    made, x = quantizer(True, 0.5, 3.2), torch.tensor([0.3, -0.9, 4.0, -4.5], requires_grad=True)
    y = made(x)
    assert y.tolist() == pytest.approx([0.5, -1.0, 1.5, -1.5])
    y.backward(torch.tensor([1.0, 1.0, 1.0, 2.0]))
    assert x.grad.tolist() == [1.0, 1.0, 0.0, 0.0]
    # dQ/db = sign(x) d ln 2 2^(b-1) beyond: (1 - 2) 0.5 ln 2 4
    assert made.width.grad.item() == pytest.approx((1 - 2) * 0.5 * math.log(2) * 4, rel=1e-5)
    # dQ/dd = (Q - x) / d inside, K sign(x) beyond; the parameter is log2 d: times d ln 2
    by_step = 0.4 - 0.2 + 3 - 2 * 3
    assert made.log2_step.grad.item() == pytest.approx(by_step * 0.5 * math.log(2), rel=1e-4)


def test_an_activation_has_codes_from_zero():
    made = quantizer(False, 0.5, 2.0)
    assert made(torch.tensor([-1.0, 0.3, 9.0])).tolist() == pytest.approx([0.0, 0.5, 1.5])
    assert made.beta.item() == pytest.approx(1.5)


def test_widths_are_rounded_and_stay_in_their_bounds():
    assert [quantizer(True, 1.0, width).effective_bits() for width in (0.0, 2.4, 2.6, 8.4, 20.0)] == [2, 2, 3, 8, 8]


def test_the_gradient_of_the_width_reaches_the_penalty():
    made = quantizer(True, 1.0, 3.3)
    made.expected_bits().backward()
    assert made.width.grad.item() == 1.0


def test_a_fixed_width_keeps_the_step():
    made = quantizer(True, 0.5, 6.0)
    made.fix(4)
    assert made.step().item() == pytest.approx(0.5)
    assert made(torch.tensor([9.0])).item() == pytest.approx(3.5)
