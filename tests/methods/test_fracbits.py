"""FracBits by hand: a mixture of two widths, and the gradient of the width."""

import pytest
import torch

from bayesbits.functional import gated_quantize
from bayesbits.methods.fracbits import FracBitsQuantizer, rounded


def quantizer(width, weight=True):
    made = FracBitsQuantizer(weight=weight, bits=(2, 4, 8))
    made.set_range(1.5, signed=weight)
    with torch.no_grad():
        made.width.fill_(width)
    return made


def test_forward_and_gradients():
    """2 bits in [-1.5, 1.5]: steps of 1; 3 bits: steps of 3 / 7. A quarter of the way between them."""
    made, x = quantizer(2.25), torch.tensor([0.4, -1.2, 2.0], requires_grad=True)
    two, three = [0.0, -1.0, 1.0], [3 / 7, -9 / 7, 9 / 7]
    y = made(x)
    assert y.tolist() == pytest.approx([0.75 * a + 0.25 * b for a, b in zip(two, three, strict=True)], rel=1e-5)
    y.backward(torch.tensor([1.0, 1.0, 2.0]))
    assert x.grad.tolist() == pytest.approx([1.0, 1.0, 0.0])
    assert made.width.grad.item() == pytest.approx(3 / 7 + (-9 / 7 + 1) + 2 * (9 / 7 - 1), rel=1e-4)


def test_a_whole_width_is_one_grid_and_still_has_a_gradient():
    made, x = quantizer(4.0), torch.tensor([0.44, -0.7])
    y = made(x)
    torch.testing.assert_close(y, made.eval()(x))
    made.train()(x).sum().backward()
    assert made.width.grad.item() != 0


def test_the_widest_width_is_between_it_and_the_one_below():
    made, x = quantizer(8.0), torch.tensor([0.4461, -0.7])
    made(x).sum().backward()
    beta = torch.tensor(1.5)
    eight, seven = (rounded(x, beta, torch.tensor(bits), signed=True).sum().item() for bits in (8.0, 7.0))
    assert made.width.grad.item() == pytest.approx(eight - seven, rel=1e-3)


@pytest.mark.parametrize(("width", "bits"), [(1.0, 2), (2.4, 2), (2.6, 3), (7.7, 8), (99.0, 8)])
def test_the_decision_is_the_nearest_width(width, bits):
    made = quantizer(width)
    assert made.effective_bits() == bits
    x = torch.randn(100)
    made.eval()
    expected = gated_quantize(x, made.beta, torch.ones(1), signed=True, bits=(bits,))
    torch.testing.assert_close(made(x), expected)


def test_rounding_has_the_gradients_of_the_definition():
    x, beta = torch.randn(200, dtype=torch.float64), torch.tensor(0.8, dtype=torch.float64)
    results = []
    for fn in (
        lambda a, b: rounded(a, b, torch.tensor(4.0), signed=True),
        lambda a, b: gated_quantize(a, b, torch.ones(1, dtype=torch.float64), signed=True, bits=(4,)),
    ):
        one, two = x.clone().requires_grad_(), beta.clone().requires_grad_()
        (fn(one, two) * torch.arange(200)).sum().backward()
        results.append((one.grad, two.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-4)
