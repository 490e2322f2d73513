"""Tolerances and differences, computed by hand."""

import math

import numpy as np
import pytest
import torch

import bayesbits as bb
from bayesbits.deploy.verification.differences import (
    ArrayComparison,
    count_true,
    describe_excess,
    differences,
    largest,
    largest_difference,
    tolerance,
)

UNIT = 2.0**-24


def test_the_tolerance_is_some_roundings_and_a_multiple_of_the_measured_error() -> None:
    exact = torch.ones(20, dtype=torch.float64)
    exact[0], exact[1] = 1000.0, 2.0
    in_float32 = exact.clone()
    in_float32[1] += 1e-3
    in_float32[0] *= 1 + UNIT / 2  # rounded once: no measure of the others, although it is large
    allowed = tolerance(exact, in_float32)
    assert allowed[5].item() == pytest.approx(8 * UNIT * 2 + 4e-3, rel=1e-12)
    assert allowed[0].item() == pytest.approx(8 * UNIT * 1000 + 4e-3, rel=1e-12)
    assert tolerance(exact, in_float32, 0.5)[5].item() == pytest.approx(0.5 * 2 + 4e-3, rel=1e-12)


def test_of_few_values_a_single_rounding_counts_as_computed() -> None:
    exact = torch.tensor([3.0, 1.0], dtype=torch.float64)
    in_float32 = exact + torch.tensor([UNIT, 0.0], dtype=torch.float64)
    assert tolerance(exact, in_float32)[1].item() == pytest.approx(8 * UNIT * 3 + 4 * UNIT, rel=1e-12)
    several = exact.repeat(8)
    assert tolerance(several, in_float32.repeat(8))[1].item() == pytest.approx(8 * UNIT, rel=1e-12)


def test_differences_of_numbers_that_are_not_finite() -> None:
    one = torch.tensor([1.0, math.nan, math.nan, math.inf, math.inf, 2.0])
    other = torch.tensor([-1.5, math.nan, 1.0, math.inf, -math.inf, math.inf])
    found = differences(one, other)
    assert found[[0, 1, 3]].tolist() == [2.5, 0.0, 0.0]
    assert (found[[2, 4, 5]] > 1e308).all()
    assert largest_difference(one[:2], other[:2]) == 2.5
    assert largest_difference(one[:0], other[:0]) == 0.0
    assert largest(torch.tensor([1.0, -3.0, math.nan, -math.inf])) == 3.0
    assert largest(torch.zeros(0)) == 0.0


def test_the_worst_excess_is_named() -> None:
    apart, allowed = torch.tensor([5.0, 2.0, 3.0]), torch.tensor([4.5, 1.0, 3.0])
    assert describe_excess(apart, allowed, torch.tensor([-7.0])) == (
        "off by 2.0e+00, where 7 is the largest and float arithmetic explains 1.0e+00"
    )


def test_arrays_that_differ_are_named_with_both_sides() -> None:
    comparison = ArrayComparison("here", "there", "; why?")
    found, expected = np.array([[1.0, np.nan], [3.0, 4.0]]), np.array([[1.0, np.nan], [3.0, 5.0]])
    comparison.check_equal("a", "step", found, found.copy())
    with pytest.raises(bb.VerificationError) as raised:
        comparison.check_equal("a", "step", found, expected)
    assert str(raised.value) == (
        "a: step differs in 1 of 4 values; the first, at (1, 1), is 4.0 here and 5.0 there; why?"
    )
    with pytest.raises(bb.VerificationError, match=r"^a: step has shape \(2, 2\) here and \(4,\) there; why\?$"):
        comparison.check_equal("a", "step", found, expected.reshape(4))
    with pytest.raises(bb.VerificationError, match="differs in 1 of 4 values"):
        comparison.check_equal("a", "step", found, np.nan_to_num(found))


def test_true_elements_of_tensors_and_arrays_are_counted() -> None:
    mask = np.array([[True, False], [True, True]])
    assert count_true(mask) == count_true(torch.from_numpy(mask)) == 3
    assert count_true(torch.tensor([0.0, torch.nan, -1.0])) == 2
