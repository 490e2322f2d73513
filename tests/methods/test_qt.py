"""QT by hand: ranges that follow the data, and gradients that pass straight through."""

import pytest
import torch

from bayesbits.methods.qt import QtQuantizer


def test_forward_and_gradients_of_a_weight():
    """The largest magnitude, 2.1, is code 7 at 4 bits: steps of 0.3."""
    made, x = QtQuantizer(weight=True, bits=(4,)), torch.tensor([2.1, -0.4, 0.5, 0.0], requires_grad=True)
    y = made(x)
    assert y.tolist() == pytest.approx([2.1, -0.3, 0.6, 0.0])
    y.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 1.0, 1.0]
    assert made.range_parameters() == []


def test_the_range_of_a_weight_is_that_of_the_present_weight():
    made = QtQuantizer(weight=True, bits=(4,))
    for largest, training in ((2.1, True), (0.7, True), (7.0, False)):
        made.train(training)
        assert made(torch.tensor([0.0, -largest])).tolist() == pytest.approx([0.0, -largest])
        assert made.step().item() == pytest.approx(largest / 7)


def test_the_range_of_an_activation_is_a_moving_average_and_stays_in_evaluation():
    made = QtQuantizer(weight=False, bits=(2,))
    made.set_range(3.0, signed=False)
    made(torch.tensor([6.0, 1.0]))
    assert made.beta.item() == pytest.approx(3.03)  # 0.99 and 0.01
    before = made.beta.clone()
    made.eval()(torch.tensor([60.0]))
    assert torch.equal(made.beta, before)


def test_forward_and_gradients_of_an_activation():
    made = QtQuantizer(weight=False, bits=(2,)).eval()
    made.set_range(3.0, signed=False)
    x = torch.tensor([-1.0, 0.6, 2.4, 4.0], requires_grad=True)
    y = made(x)
    assert y.tolist() == pytest.approx([0.0, 1.0, 2.0, 3.0], rel=1e-6)
    y.sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 0.0]
