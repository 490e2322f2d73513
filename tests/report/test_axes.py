"""Axes hold their values, and their ticks are round."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesbits.report.axes import linear_axis, log_axis

POSITIVE = st.floats(1e-6, 1e6)


@given(POSITIVE, POSITIVE)
def test_every_value_lies_on_its_axis(one, other):
    low, high = sorted((one, other))
    for axis in (log_axis(low, high, 200.0, 40.0), linear_axis(high, 200.0, 40.0)):
        for value in (low, high):
            assert 40 - 1e-3 <= axis.place(value) <= 200 + 1e-3
        assert 2 <= len(axis.ticks()) <= 14
        assert all(40 - 1e-3 <= axis.place(tick) <= 200 + 1e-3 for tick in axis.ticks())


@pytest.mark.parametrize(
    ("axis", "ticks"),
    [
        (linear_axis(1.3, 0, 100), [0, 0.5, 1.0, 1.5]),
        (linear_axis(0, 0, 100), [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (log_axis(0.3, 99.0, 0, 100), [0.1, 1, 10, 100]),
        (log_axis(5.0, 5.0, 0, 100), [1, 10]),
    ],
)
def test_ticks_are_round(axis, ticks):
    assert axis.ticks() == pytest.approx(ticks)
    assert axis.place(axis.low) == 0
    assert axis.place(axis.high) == 100
