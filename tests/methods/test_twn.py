"""TWN by hand: threshold, scale, and the gradient that passes through."""

import pytest
import torch

from bayesbits.methods.twn import TwnQuantizer, scale_and_signs


def test_forward_and_gradient():
    """mean|w| = 1, so Delta = 0.7 and 0.6 is below it; alpha is the mean of 0.9, 2.0, 1.5 and 1.0."""
    w = torch.tensor([0.9, -2.0, 0.0, 0.6, 1.5, -1.0])
    scale, signs = scale_and_signs(w)
    assert signs.tolist() == [1.0, -1.0, 0.0, 0.0, 1.0, -1.0]
    assert scale.item() == pytest.approx((0.9 + 2.0 + 1.5 + 1.0) / 4)
    made, x = TwnQuantizer(weight=True, bits=(2,)), w.clone().requires_grad_()
    y = made(x)
    assert y.tolist() == pytest.approx([1.35, -1.35, 0.0, 0.0, 1.35, -1.35])
    y.backward(torch.arange(6.0))
    assert x.grad.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]  # also of weights that are zero, and of large ones
    assert made.step().item() == pytest.approx(1.35)


def test_the_threshold_is_not_half_of_the_scale():
    """Delta = 0.7 and alpha = 1.583: 0.75 is above the one, and would round to 0 by the other."""
    scale, signs = scale_and_signs(torch.tensor([0.75, -2.0, 0.15, 0.1, 2.0]))
    assert scale.item() == pytest.approx(4.75 / 3)
    assert signs.tolist() == [1.0, -1.0, 0.0, 0.0, 1.0]
    assert torch.round(0.75 / scale) == 0.0
    made = TwnQuantizer(weight=True, bits=(2,))
    assert made(torch.tensor([0.75, -2.0, 0.15, 0.1, 2.0])).tolist() == pytest.approx(
        [4.75 / 3, -4.75 / 3, 0, 0, 4.75 / 3]
    )


def test_a_weight_has_one_threshold_and_one_scale():
    """mean|w| = 1.15, so Delta = 0.805: by rows it would be 0.21 and 1.4, and 0.5 would stay."""
    scale, signs = scale_and_signs(torch.tensor([[0.5, -0.1], [3.0, 1.0]]))
    assert signs.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert scale.item() == pytest.approx(2.0)


def test_a_weight_of_zeros_stays_usable():
    assert not TwnQuantizer(weight=True, bits=(2,))(torch.zeros(4)).any()


def test_a_weight_in_half_precision_has_its_own_scale():
    """The sum of 1,048,576 ones does not fit float16."""
    made = TwnQuantizer(weight=True, bits=(2,))
    made.follow(torch.ones(1024, 1024, dtype=torch.float16))
    assert made.alpha_buffer.item() == 1.0
    assert made.threshold.item() == pytest.approx(0.7)
