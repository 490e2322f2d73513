"""Folding a batch norm, by hand."""

import pytest
import torch
from torch import nn

from bayesbits.nn.folding import LARGEST_BIAS_CODE, fold_factor, folded_bias, round_bias, widening


def batch_norm(affine: bool = True) -> nn.BatchNorm1d:
    """gamma / sqrt(var + eps) is 1 and -1/3."""
    norm = nn.BatchNorm1d(2, eps=1.0, affine=affine).eval()
    with torch.no_grad():
        norm.running_var.copy_(torch.tensor([3.0, 8.0]))
        norm.running_mean.copy_(torch.tensor([1.0, 2.0]))
        if affine:
            norm.weight.copy_(torch.tensor([2.0, -1.0]))
            norm.bias.copy_(torch.tensor([0.5, -0.5]))
    return norm


def test_the_factor():
    assert fold_factor(batch_norm()).tolist() == pytest.approx([1.0, -1 / 3])
    assert fold_factor(batch_norm(affine=False)).tolist() == pytest.approx([1 / 2, 1 / 3])
    assert not fold_factor(batch_norm()).requires_grad
    wide = fold_factor(batch_norm(), torch.float64)
    assert wide.dtype == torch.float64
    assert wide.tolist() == pytest.approx([1.0, -1 / 3], rel=1e-15)


def test_the_bias():
    norm = batch_norm()
    factor, bias = fold_factor(norm), torch.tensor([0.25, 1.0])
    assert folded_bias(norm, factor, bias, norm.bias).tolist() == pytest.approx([-0.25, -1 / 6])
    assert folded_bias(norm, factor, None, norm.bias).tolist() == pytest.approx([-0.5, 1 / 6])
    assert folded_bias(norm, factor, bias, None).tolist() == pytest.approx([-0.75, 1 / 3])


def test_a_folded_layer_computes_what_layer_and_batch_norm_did():
    torch.manual_seed(0)
    layer, norm, x = nn.Linear(3, 2), batch_norm(), torch.randn(5, 3)
    factor = fold_factor(norm)
    folded = nn.functional.linear(x, layer.weight * factor[:, None], folded_bias(norm, factor, layer.bias, norm.bias))
    torch.testing.assert_close(folded, norm(layer(x)))


def test_a_bias_is_rounded_to_whole_steps_and_its_gradient_passes():
    bias = torch.tensor([0.26, -0.26, 0.24], requires_grad=True)
    step = torch.tensor([0.1, 0.1, 0.5], requires_grad=True)
    rounded = round_bias(bias, step)
    assert rounded.tolist() == pytest.approx([0.3, -0.3, 0.0])
    (rounded * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert bias.grad.tolist() == [1.0, 2.0, 3.0]
    assert step.grad is None


def test_steps_grow_until_the_bias_fits():
    assert LARGEST_BIAS_CODE == 2**30
    bias = torch.tensor([0.0, 2.0**29, -(2.0**29), 2.0**32], requires_grad=True)
    found = widening(bias, torch.tensor(0.5), torch.tensor([1.0, 1.0, 0.25, 2.0]))
    assert found.tolist() == [1, 1, 4, 4]
    assert not found.requires_grad
    tiny = widening(torch.zeros(1), torch.tensor(1e-20), torch.tensor([1e-20]))
    assert tiny.tolist() == pytest.approx([1e10])  # input step times weight step is then 1e-30
