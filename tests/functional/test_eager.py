"""The definition block by block on the CPU: equal to the definition on any matrix, block borders included."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesbits.functional import eager, reference

WIDTHS = [(2, 4, 8, 16, 32), (8,), (32,), (3, 5, 8), (2, 24), (16, 32)]


def arguments(shape, signed, gates, bits, dtype=torch.float32, spread=1.0):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).to(dtype) * spread
    beta = torch.rand(shape[0], 1, generator=generator) + 0.5
    return x if signed else x.abs(), beta, torch.tensor(gates[: len(bits)]), signed, bits


def assert_as_defined(x, beta, gates, signed, bits, **lower):
    grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
    expected_y = reference.forward(x, beta, gates, signed, bits, **lower)
    assert torch.equal(eager.forward(x, beta, gates, signed, bits, **lower), expected_y)
    dx, *found = eager.backward(grad, x, beta, gates, signed, bits, **lower)
    expected_dx, *expected = reference.backward(grad, x, beta, gates, signed, bits, **lower)
    assert torch.equal(dx, expected_dx)
    norm = grad.double().norm().item()
    for own, right in zip(found, expected, strict=True):
        assert (own is None) == (right is None)
        if right is not None:
            assert own.shape == right.shape
            torch.testing.assert_close(own, right, rtol=1e-5, atol=2e-7 * norm)
    assert eager.backward(grad, x, beta, gates, signed, bits, False)[1:] == (None, None, None)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=5, max_size=5),
    st.sampled_from(WIDTHS),
    st.sampled_from([0.0, -0.01, -0.7, -3.0]),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from([0.1, 2.0]),
)
def test_a_range_of_two_ends_is_the_definition_s(gates, bits, alpha, dtype, spread):
    given_arguments = arguments((1, 300), True, gates, bits, dtype, spread)
    assert_as_defined(*given_arguments, alpha=torch.tensor([[alpha]]))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([(1, 1), (1, 50), (3, 1), (70, 9), (5, 64), (4, 300)]),
    st.booleans(),
    st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=5, max_size=5),
    st.sampled_from(WIDTHS),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from([0.1, 2.0]),
)
def test_values_and_gradients_are_the_definition_s(shape, signed, gates, bits, dtype, spread):
    assert_as_defined(*arguments(shape, signed, gates, bits, dtype, spread))


@pytest.mark.parametrize("shape", [(1, 2 * 2**15 + 3), (2, 2**15 + 1), (700, 100)])
def test_several_blocks_are_put_together(shape):
    assert_as_defined(*arguments(shape, True, [1.0, 0.8, 1.0, 0.0, 0.5], WIDTHS[0]))


@pytest.mark.parametrize("gates", [[1.0, 1.0], [0.0, 1.0]])
def test_nan_stays_nan_and_gets_no_gradient(gates):
    x, beta = torch.tensor([[0.5, torch.nan], [2.0, 0.1]]), torch.ones(2, 1)
    for rows in (x, x[:1]):
        y = eager.forward(rows, beta[: len(rows)], torch.tensor(gates), True, (4, 8))
        assert y.isnan().equal(rows.isnan())
        dx = eager.backward(torch.ones_like(rows), rows, beta[: len(rows)], torch.tensor(gates), True, (4, 8))[0]
        assert dx.tolist() == [[gates[0], 0.0], [0.0, gates[0]]][: len(rows)]


def test_the_result_has_the_dtype_that_is_asked_for():
    x, *others = arguments((2, 5), True, [1.0] * 5, WIDTHS[0])
    assert eager.forward(x, *others, torch.bfloat16).equal(reference.forward(x, *others, torch.bfloat16))
