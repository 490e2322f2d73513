"""From numbers to codes and back, computed by hand."""

import dataclasses

import pytest
import torch

from bayesbits.deploy.modules.quantizers import Dequantize, Quantize
from bayesbits.records.integer_network import Grid


@pytest.mark.parametrize("signed", [False, True])
def test_quantizing_rounds_half_to_even_and_saturates(signed):
    grid = Grid("x", 4, signed, 0.5, -7 if signed else 0, 7 if signed else 15, 8.0)
    x = torch.tensor([-100.0, -0.75, -0.25, 0.0, 0.25, 0.75, 1.25, 100.0])
    expected = [-7, -2, 0, 0, 0, 2, 2, 7] if signed else [0, 0, 0, 0, 0, 2, 2, 15]
    codes = Quantize(grid)(x)
    assert codes.tolist() == expected
    assert Dequantize(grid)(codes).tolist() == [code * 0.5 for code in expected]


def test_quantizers_say_what_they_do():
    grid = Grid("x", 4, True, 0.5, -7, 7, 1.0)
    assert repr(Quantize(grid)) == "Quantize(4 bits, symmetric, step 0.5)"
    assert repr(Dequantize(dataclasses.replace(grid, signed=False))) == "Dequantize(4 bits, unsigned, step 0.5)"
