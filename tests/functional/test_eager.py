"""The definition block by block on the CPU: equal to the definition on any matrix, block borders included."""

import functools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

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
    alone = eager.backward(grad, x, beta, gates, signed, bits, False, **lower)
    assert torch.equal(alone[0], expected_dx)
    assert alone[1:] == (None, None, None)


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


@pytest.mark.parametrize("shape", [(1, 2 * 2**16 + 3), (2, 2**16 + 1), (700, 100)])
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


class Operations(TorchDispatchMode):
    """Counts the operations of torch."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.count += 1
        return function(*arguments, **keywords or {})


@pytest.mark.parametrize(
    ("rows", "lower"), [(1, {}), (6, {}), (1, {"alpha": torch.tensor([[-0.3]])})], ids=["one", "several", "asymmetric"]
)
def test_the_number_of_operations_does_not_grow_with_the_widths(rows, lower):
    counts = []
    for bits in ((2, 4), (2, 4, 8, 16), (2, 3, 4, 6, 8, 12, 16)):
        given, grad = arguments((rows, 20), True, [1.0] * len(bits), bits), torch.ones(rows, 20)
        for function in (eager.forward, functools.partial(eager.backward, grad)):
            function(*given, **lower)  # makes the constants, which are kept
        with Operations() as operations:
            eager.forward(*given, **lower)
            eager.backward(grad, *given, **lower)
        counts.append(operations.count)
    assert len(set(counts)) == 1
    assert counts[0] <= 75


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 1, 2, 3])  # below, inside and above the range, and the range itself
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("sums_needed", [True, False])
def test_numbers_that_are_not_finite_give_what_the_definition_gives(value, place, signed, sums_needed):
    values = [-3.0, 0.2, 3.0]
    gates, bits, beta = torch.tensor([0.5, 1.0, 0.7]), (2, 4, 32), torch.tensor([[1.0], [2.0]])
    for rows in (1, 2):
        x, grad = torch.tensor([values] * rows), torch.ones(rows, 3)
        spoiled = [(x, grad, torch.full_like(beta, value))]
        if place < 3:
            bad_x, bad_grad = x.clone(), grad.clone()
            bad_x[-1, place], bad_grad[-1, place] = value, value
            spoiled = [(bad_x, grad, beta), (x, bad_grad, beta), (bad_x, bad_grad, beta)]
        for own_x, own_grad, own_beta in spoiled:
            given = (own_grad, own_x, own_beta[:rows], gates, signed, bits, sums_needed)
            for own, right in zip(eager.backward(*given), reference.backward(*given), strict=True):
                assert (own is None) == (right is None)
                if right is not None:
                    torch.testing.assert_close(own, right, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_sums_over_large_blocks_are_as_exact_as_those_of_the_definition():
    bits = (2, 4, 8, 16)
    x, beta, gates, signed, _ = arguments((1, 2**16), True, [1.0, 0.8, 0.9, 0.7], bits)
    grad = torch.randn(1, 2**16, generator=torch.Generator().manual_seed(1))
    exact = reference.backward(grad.double(), x.double(), beta, gates, signed, bits)
    errors = [
        [(own.double() - right).abs() for own, right in zip(found[1:3], exact[1:3], strict=True)]
        for found in (module.backward(grad, x, beta, gates, signed, bits) for module in (eager, reference))
    ]
    steps = torch.tensor([1.0, *(2.0 / (2**width - 1) for width in bits[:-1])])
    for own, definition, unit in zip(*errors, (torch.tensor(1.0), steps), strict=True):
        assert (own <= 4 * definition + 1e-7 * grad.norm() * unit).all()


def test_threads_do_not_disturb_each_other():
    given = [arguments((1, size), True, [1.0, 0.8, 0.9, 0.7, 0.5], WIDTHS[0]) for size in (3000, 40_000)] * 20
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda one: eager.backward(one[0], *one), given))
    for one, found in zip(given, together, strict=True):
        for own, right in zip(found, eager.backward(one[0], *one), strict=True):
            assert own is right is None or torch.equal(own, right)


@pytest.mark.parametrize(
    ("signed", "alpha", "rows"), [(True, None, 1), (False, None, 1), (True, None, 2), (False, None, 2), (True, -0.4, 1)]
)
def test_the_ends_of_the_range_belong_to_it(signed, alpha, rows):
    high, low = torch.tensor(1.3), torch.tensor(alpha if alpha is not None else -1.3 if signed else 0.0)
    ends = torch.stack([low, high, torch.nextafter(low, -2 * high), torch.nextafter(high, 2 * high)])
    given = torch.ones(rows, 4), ends.repeat(rows, 1), high.repeat(rows, 1), torch.ones(2), signed, (2, 8)
    lower = {} if alpha is None else {"alpha": low.reshape(1, 1)}
    for sums_needed in (True, False):
        found = eager.backward(*given, sums_needed, **lower)
        assert found[0].tolist() == [[1.0, 1.0, 0.0, 0.0]] * rows
        for own, right in zip(found, reference.backward(*given, sums_needed, **lower), strict=True):
            assert own is right is None or torch.allclose(own, right, rtol=1e-5, atol=1e-6)
