"""Elements are escaped, axes hold their values, and ticks are round."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesbits.report.svg import Axis, element, label, linear_axis
from tests.report.parsing import Page
from tests.report.runs import HOSTILE

POSITIVE = st.floats(1e-6, 1e6)


@given(POSITIVE, POSITIVE)
def test_every_value_lies_on_its_axis(one, other):
    low, high = sorted((one, other))
    axis = linear_axis(high, 200.0, 40.0)
    for value in (low, high):
        assert 40 - 1e-3 <= axis.position(value) <= 200 + 1e-3
    assert 2 <= len(axis.ticks()) <= 14
    assert all(40 - 1e-3 <= axis.position(tick) <= 200 + 1e-3 for tick in axis.ticks())


@pytest.mark.parametrize(
    ("axis", "ticks"),
    [
        (linear_axis(1.3, 0, 100), [0, 0.5, 1.0, 1.5]),
        (linear_axis(0, 0, 100), [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (Axis(0.1, 100, 0, 100, logarithmic=True), [0.1, 1, 10, 100]),
    ],
)
def test_ticks_are_round(axis, ticks):
    assert axis.ticks() == pytest.approx(ticks)
    assert axis.position(axis.low) == 0
    assert axis.position(axis.high) == 100


def test_text_and_attributes_are_escaped_and_markup_is_not():
    inner = element("title", HOSTILE)
    page = Page(element("text", inner, HOSTILE, class_=HOSTILE, text_anchor="end", x=1.005, y=2.0))
    visible = HOSTILE.replace("\u202e", "\N{REPLACEMENT CHARACTER}")
    assert page.texts == [visible, visible]
    assert page.elements == [("text", {"class": visible, "text-anchor": "end", "x": "1", "y": "2"}), ("title", {})]


def test_a_label_has_its_position_and_class():
    assert label(1.5, 20, "4 < 8", "value", "end") == (
        '<text class="value" x="1.5" y="20" text-anchor="end">4 &lt; 8</text>'
    )
