"""WAGE by hand: its grids, powers of two, and quantized errors."""

import pytest
import torch

from bayesbits.methods.wage import WageQuantizer, on_grid, quantized_error


def test_the_grid_of_two_bits():
    """sigma = 0.5: -0.5, 0 and 0.5."""
    x = torch.tensor([-3.0, -0.3, 0.2, 0.26, 0.9])
    assert on_grid(x, 2).tolist() == [-0.5, -0.5, 0.0, 0.5, 0.5]
    assert on_grid(torch.tensor([2.0]), 8).item() == 1 - 2.0**-7


def test_forward_and_gradients_of_a_weight():
    """A range of 0.3 has the scale 2^-2: grid points -0.125, 0 and 0.125."""
    made, x = WageQuantizer(weight=True, bits=(2,)), torch.tensor([0.3, -0.08, 0.05], requires_grad=True)
    made.set_range(0.3, signed=True)
    y = made(x)
    assert made.scale.item() == 0.25
    assert y.tolist() == [0.125, -0.125, 0.0]
    assert made.step().item() == 0.125
    y.backward(torch.tensor([1.0, 2.0, 3.0]))
    assert x.grad.tolist() == [1.0, 2.0, 3.0]  # everywhere


def test_errors_of_activations_are_quantized_on_their_way_back():
    """max|e| = 3, so c = 4 and the step is 4 / 128."""
    made, x = WageQuantizer(weight=False, bits=(8,)), torch.zeros(3, requires_grad=True)
    made.set_range(1.0, signed=False)
    error = torch.tensor([3.0, 0.017, -0.1])
    made(x).backward(error)
    assert x.grad.tolist() == pytest.approx([3.0, 0.03125, -0.09375])
    assert torch.equal(x.grad, quantized_error(error))
    assert quantized_error(torch.tensor([4.0])).item() == pytest.approx(4 * (1 - 2.0**-7))  # clipped below c


def test_an_activation_beyond_the_grid_has_no_gradient():
    """The scale is 1, and 2 bits end at -0.5 and 0.5. With a gradient there a network on MNIST learns nothing."""
    made, x = WageQuantizer(weight=False, bits=(2,)), torch.tensor([-0.6, -0.4, 0.1, 0.4, 0.6], requires_grad=True)
    made.set_range(1.0, signed=True)
    y = made(x)
    assert y.tolist() == [-0.5, -0.5, 0.0, 0.5, 0.5]
    y.backward(torch.tensor([3.0, 2.0, -3.0, 1.0, 3.0]))
    assert x.grad.tolist() == [0.0, 2.0, -3.0, 1.0, 0.0]


def test_scales_are_the_nearest_powers_of_two():
    """log2 0.4 = -1.32 and log2 2.5 = 1.32: neither rounding down nor rounding up gives 0.5 and 2."""
    made = WageQuantizer(weight=True, bits=(2,))
    made.set_range(0.4, signed=True)
    assert made.scale.item() == 0.5
    assert quantized_error(torch.tensor([2.5])).item() == pytest.approx(2 * (1 - 2.0**-7))


def test_the_largest_error_is_that_of_activations_on_the_grid():
    made, x = WageQuantizer(weight=False, bits=(2,)), torch.tensor([0.9, 0.1], requires_grad=True)
    made.set_range(1.0, signed=True)
    made(x).backward(torch.tensor([64.0, 1.0]))
    assert x.grad.tolist() == [0.0, 1 - 2.0**-7]  # with c = 64 it would be 1


def test_activations_have_the_signed_grid_behind_a_relu_too():
    made = WageQuantizer(weight=False, bits=(4,))
    made.set_range(1.0, signed=False)
    assert made.signed
    assert made(torch.tensor([5.0, 0.13])).tolist() == [0.875, 0.125]
