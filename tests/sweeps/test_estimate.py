"""Mean and standard error, as numbers and as text."""

from math import sqrt

import pytest

from bayesbits.sweeps.estimate import Estimate, cost_text, estimate_text


def test_the_standard_error_is_that_of_the_mean():
    found = Estimate.of([96.0, 97.0, 98.0])
    assert found.mean == 97.0
    assert found.error == pytest.approx(1 / sqrt(3))  # the standard deviation of the sample is 1
    assert found.ends == (pytest.approx(97 - 1 / sqrt(3)), pytest.approx(97 + 1 / sqrt(3)))
    assert found.to_json() == {"mean": 97.0, "standard_error": found.error, "values": [96.0, 97.0, 98.0]}


def test_a_single_value_has_no_error():
    assert Estimate.of([3.0]).error is None
    assert Estimate.of([3.0]).ends == (3.0, 3.0)


def test_estimates_as_text():
    assert estimate_text(Estimate.of([96.0, 97.0, 98.0]), "%") == "97.00 ± 0.58%"
    assert estimate_text(Estimate.of([97.0]), "%") == "97.00%"
    assert estimate_text(Estimate.of([0.5, 0.75])) == "0.6250 ± 0.1250"
    assert cost_text(Estimate.of([0.51, 0.53])) == "0.520 ± 0.010%"
    assert cost_text(Estimate.of([0.5123])) == "0.512%"
    assert cost_text(Estimate.of([12.0, 14.0])) == "13.0 ± 1.0%"
    assert cost_text(Estimate.of([0.0, 0.0])) == "0.000 ± 0.000%"
