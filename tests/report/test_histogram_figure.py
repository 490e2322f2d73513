"""The grid in a histogram is the grid of the quantizer, for every kind of range."""

from dataclasses import replace

import pytest
import torch

from bayesbits.functional import gated_quantize
from bayesbits.records.tensor_statistics import Histogram
from bayesbits.report.histogram_figure import codes_of, grid_of, grid_words, histogram
from tests.report.parsing import Page

SIGNED = Histogram("w", 2, -1.5, 1.5, 1, -2.0, 2.0, (1, 0, 4, 16), 0.0, {})


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize(("low", "high"), [(-1.5, 1.5), (0.0, 2.0), (-0.5, 2.0)])
def test_the_grid_is_that_of_the_quantizer(low, high, bits):
    tensor = replace(SIGNED, bits=bits, low=low, high=high)
    values = torch.linspace(low, high, 10_000)
    alpha = torch.tensor(low) if low not in (0.0, -high) else None
    rounded = gated_quantize(
        values, torch.tensor(high), torch.ones(1), signed=low < 0, bits=(bits,), alpha=alpha
    )  # fmt: skip
    reached = sorted(set(rounded.tolist()))
    assert grid_of(tensor) == pytest.approx(reached, abs=1e-6)
    assert codes_of(tensor) == len(reached)


@pytest.mark.parametrize(("low", "high", "codes"), [(-2.5, 2.5, 5), (0.0, 4.0, 5)])
def test_a_grid_may_have_fewer_codes_than_its_width(low, high, codes):
    """Steps of 1 up to code 2 or 4, where 4 bits have 7 or 15."""
    tensor = replace(SIGNED, bits=4, low=low, high=high, codes=codes)
    assert grid_of(tensor) == ([-2.0, -1.0, 0.0, 1.0, 2.0] if low < 0 else [0.0, 1.0, 2.0, 3.0, 4.0])
    assert grid_words(tensor) == "5 codes"


def test_too_many_codes_are_said_and_not_drawn():
    assert grid_of(replace(SIGNED, bits=8)) == []
    assert grid_words(replace(SIGNED, bits=8)) == "255 codes, too many to draw"
    assert grid_words(SIGNED) == "3 codes"
    assert grid_words(replace(SIGNED, bits=0)) == "switched off: every value is 0"
    assert grid_words(replace(SIGNED, bits=32)) == "float: values are clipped and not rounded"


def test_heights_are_square_roots_of_counts():
    page = Page(histogram(SIGNED))
    bars = page.all("path", class_="bars")[0]["d"]
    assert bars == "M6.0 104v-24.5h72.0v24.5M150.0 104v-49.0h72.0v49.0M222.0 104v-98.0h72.0v98.0"
    assert page.all("path", class_="codes")[0]["d"].count("M") == 3
    assert page.texts == ["-1.5", "1.5"]
