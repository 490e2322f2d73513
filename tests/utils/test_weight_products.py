"""Functions that multiply data with a weight, and which of their arguments are which."""

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesbits.utils.weight_products import FUNCTIONS, SIGNATURES, bind, call

X, IMAGES = torch.arange(6.0).reshape(2, 3), torch.arange(32.0).reshape(1, 2, 4, 4)
MATRIX, BIAS, FILTERS = torch.arange(12.0).reshape(3, 4).sin(), torch.arange(4.0), torch.ones(3, 2, 2, 2)


def test_every_function_has_a_signature():
    assert set(FUNCTIONS.values()) == set(SIGNATURES)


def test_a_bound_call_computes_what_the_function_does():
    calls = [
        (F.linear, (X, MATRIX.T), {"bias": BIAS}),
        (F.linear, (X,), {"weight": MATRIX.T}),
        (torch.addmm, (BIAS, X, MATRIX), {}),
        (Tensor.addmm, (BIAS, X), {"mat2": MATRIX}),
        (torch.mm, (X, MATRIX), {}),
        (Tensor.__matmul__, (X, MATRIX), {}),
        (F.conv2d, (IMAGES, FILTERS, None, 2), {"padding": 1}),
        (F.conv_transpose2d, (IMAGES, FILTERS.transpose(0, 1)), {"bias": BIAS[:3], "stride": 2}),
    ]
    for function, args, kwargs in calls:
        data, weight, bias, rest, keywords = bind(function, args, kwargs)
        assert torch.equal(call(function, data, weight, bias, rest, keywords), function(*args, **kwargs))
        assert data is X or data is IMAGES
        nothing = call(function, data, 0 * weight, bias, rest, keywords)
        assert torch.equal(nothing, 0 * function(*args, **kwargs) + shift(data, bias))


def shift(data, bias):
    """What a product of zeros adds."""
    if bias is None:
        return 0.0
    return bias.reshape(-1, 1, 1) if data is IMAGES else bias


def test_a_bias_that_the_function_does_not_take_is_added():
    data, weight, _, rest, keywords = bind(torch.matmul, (X, MATRIX), {})
    assert torch.equal(call(torch.matmul, data, weight, BIAS, rest, keywords), X @ MATRIX + BIAS)
