"""Functions that multiply data with a weight, and which of their arguments are which."""

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesbits.utils.products import FUNCTIONS, SIGNATURES, bind

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
        call = bind(function, args, kwargs)
        assert torch.equal(call(call.data, call.weight, call.bias), function(*args, **kwargs))
        assert call.data is X or call.data is IMAGES
        assert torch.equal(call(call.data, 0 * call.weight, call.bias), 0 * function(*args, **kwargs) + shift(call))


def shift(call):
    """What a product of zeros adds."""
    if call.bias is None:
        return 0.0
    return call.bias.reshape(-1, 1, 1) if call.data is IMAGES else call.bias


def test_a_bias_that_the_function_does_not_take_is_added():
    call = bind(torch.matmul, (X, MATRIX), {})
    assert torch.equal(call(X, MATRIX, BIAS), X @ MATRIX + BIAS)
