"""TQT by hand: powers of two, and the gradient of the threshold's logarithm."""

import math

import pytest
import torch

from bayesbits.methods.tqt import TqtQuantizer


def quantizer(weight, threshold, bits=4):
    made = TqtQuantizer(weight=weight, bits=(bits,))
    made.set_range(threshold, signed=weight)
    return made


def test_forward_and_gradients_of_a_weight():
    """t = 3: s = 2^2 / 2^3 = 0.5, as for every t above 2 and up to 4."""
    made, x = quantizer(True, 3.0), torch.tensor([0.3, -0.9, 4.0, -4.5], requires_grad=True)
    y = made(x)
    assert y.tolist() == pytest.approx([0.5, -1.0, 3.5, -3.5])
    y.backward(torch.tensor([1.0, 1.0, 1.0, 2.0]))
    assert x.grad.tolist() == [1.0, 1.0, 0.0, 0.0]
    # s ln 2 (0.4 - 0.2 + 7 - 2 * 7)
    assert made.log2_threshold.grad.item() == pytest.approx(0.5 * math.log(2) * (0.4 - 0.2 + 7 - 14), rel=1e-5)


def test_forward_and_gradients_of_an_activation():
    """t = 1.5, unsigned: s = 2 / 2^2 = 0.5, codes 0..3."""
    made, x = quantizer(False, 1.5, bits=2), torch.tensor([-1.0, 0.3, 0.9, 5.0], requires_grad=True)
    y = made(x)
    assert y.tolist() == pytest.approx([0.0, 0.5, 1.0, 1.5])
    y.sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 0.0]
    assert made.log2_threshold.grad.item() == pytest.approx(0.5 * math.log(2) * (0.4 + 0.2 + 3), rel=1e-5)


def test_what_rounds_to_the_last_code_is_inside():
    """s = 0.5 and p = 3: 1.6 is 3.2 steps, has its gradient, and asks for a smaller step; 1.8 is 3.6, and beyond."""
    made, x = quantizer(False, 1.5, bits=2), torch.tensor([1.6, 1.8], requires_grad=True)
    y = made(x)
    assert y.tolist() == pytest.approx([1.5, 1.5])
    y.sum().backward()
    assert x.grad.tolist() == [1.0, 0.0]
    assert made.log2_threshold.grad.item() == pytest.approx(0.5 * math.log(2) * (-0.2 + 3), rel=1e-5)


@pytest.mark.parametrize(("threshold", "step"), [(2.1, 0.5), (3.9, 0.5), (4.0, 0.5), (4.1, 1.0), (0.3, 0.0625)])
def test_steps_are_powers_of_two(threshold, step):
    made = quantizer(True, threshold)
    assert made.step().item() == step
    assert made.power_of_two().item() == step
