"""`gated_quantize` as it is called: defaults, checks, and errors that name the argument."""

import pytest
import torch

from bayesbits.functional import (
    dequantize,
    gated_quantize,
    implementation,
    quantize_to_codes,
    recursive_gated_quantize,
)
from bayesbits.functional.operation import check_range
from tests.functional.gradients import differentiate


def test_widths_are_the_papers_where_none_are_given():
    x, beta, grad = torch.linspace(-1, 1, 50, dtype=torch.float64), torch.tensor(0.8).double(), torch.ones(50).double()
    gates = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5], dtype=torch.float64)
    for function in (recursive_gated_quantize, gated_quantize):
        default, given = (
            differentiate(function, x, beta, gates, grad, signed=True, **options)
            for options in ({}, {"bits": (2, 4, 8, 16, 32)})
        )
        assert all(torch.equal(default[key], given[key]) for key in given)


@pytest.mark.parametrize(
    ("bits", "message"),
    [((), "non-empty"), ((2, 2), "increase"), ((8, 4), "increase"), ((1, 2), "between 2 and 32"), ((2, 33), "between"),
     ((2.0, 4.0), "integers")],
)  # fmt: skip
def test_wrong_widths_are_refused_at_the_call(bits, message):
    with pytest.raises(ValueError, match=message):
        gated_quantize(torch.ones(3), 1.0, torch.ones(max(len(bits), 1)), signed=True, bits=bits)


@pytest.mark.parametrize("beta", [0.0, -1.0, float("nan"), float("inf"), 1e-40])
def test_a_range_that_is_no_range_is_refused(beta):
    with pytest.raises(ValueError, match="a range must be"):
        gated_quantize(torch.ones(3), beta, torch.ones(5), signed=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
def test_a_result_is_not_wider_than_what_was_read(dtype):
    with pytest.raises(TypeError, match="as that or as a narrower one"):
        gated_quantize(torch.ones(3), 1.0, torch.ones(1), signed=True, bits=(8,), dtype=dtype)


def test_wrong_gates_ranges_and_dtypes_are_refused():
    with pytest.raises(ValueError, match="need a vector of 5 gates"):
        gated_quantize(torch.ones(3), 1.0, torch.ones(4), signed=True)
    with pytest.raises(ValueError, match="one for each of axis 0"):
        gated_quantize(torch.ones(3, 2), torch.ones(2), torch.ones(5), signed=True)
    with pytest.raises(TypeError, match="floating point"):
        gated_quantize(torch.ones(3, dtype=torch.int32), 1.0, torch.ones(5), signed=True)


def test_more_ranges_than_a_kernel_launch_has_rows():
    x = torch.linspace(-2, 2, 70_000).reshape(70_000, 1)
    with implementation("triton"):
        y = gated_quantize(x, torch.full((70_000,), 1.5), torch.ones(1), signed=True, bits=(8,))
    assert torch.equal(
        y,
        dequantize(
            quantize_to_codes(x, torch.tensor(1.5), bits=8, signed=True), torch.tensor(1.5), bits=8, signed=True
        ),
    )


def test_ranges_end_where_float32_can_still_divide_them():
    assert [check_range(beta) for beta in (1e-30, 1e30)] == [1e-30, 1e30]
    for beta in (0.99e-30, 1.01e30):
        with pytest.raises(ValueError, match="a range must be a number from"):
            check_range(beta)


@pytest.mark.parametrize(
    ("ends", "signed", "message"),
    [((-0.5, 1.0), False, "needs signed=True"), ((0.5, 1.0), True, "alpha must be a number from"),
     ((float("nan"), 1.0), True, "alpha must be"), ((-1.0, torch.ones(3)), True, "one alpha and one beta"),
     ((-torch.ones(3), 1.0), True, "one alpha and one beta; alpha has shape")],
)  # fmt: skip
def test_ends_that_are_no_asymmetric_range_are_refused(ends, signed, message):
    with pytest.raises(ValueError, match=message):
        gated_quantize(torch.ones(3, 2), ends[1], [1.0], signed=signed, bits=(8,), alpha=ends[0])


def test_a_frozen_asymmetric_range_gives_only_the_gradient_of_x():
    x = torch.linspace(-1, 2, 100, requires_grad=True)
    gated_quantize(x, 1.0, [1.0], signed=True, bits=(4,), alpha=-0.5).sum().backward()
    assert torch.equal(x.grad, ((x >= -0.5) & (x <= 1)).float())


def test_the_lower_end_learns_alone_where_the_others_are_frozen():
    alpha = torch.tensor(-0.5, requires_grad=True)
    gated_quantize(torch.tensor([-2.0, -3.0]), 1.0, [1.0], signed=True, bits=(32,), alpha=alpha).sum().backward()
    assert alpha.grad == 2
