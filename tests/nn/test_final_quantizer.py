"""A quantizer that is final: it keeps a range as it is."""

import pytest
import torch

from bayesbits.functional import gated_quantize
from bayesbits.nn.final_quantizer import FinalQuantizer


def test_it_rounds_to_the_grid_of_its_range_and_learns_nothing():
    quantizer = FinalQuantizer(torch.tensor(3.75), bits=4, signed=True)
    x = torch.randn(50)
    assert torch.equal(quantizer(x), gated_quantize(x, torch.tensor(3.75), torch.ones(1), signed=True, bits=(4,)))
    assert quantizer.step().item() == 0.5  # not by way of a logarithm
    assert not any(parameter.requires_grad for parameter in quantizer.parameters())
    assert quantizer.range_parameters() == []
    stretch = torch.full((50,), 2.0)
    assert torch.equal(quantizer(2 * x, stretch), 2 * quantizer(x))


@pytest.mark.parametrize("signed", [True, False])
def test_a_grid_may_end_before_its_last_code(signed):
    """Steps of 0.5: 4 bits have the codes up to 7 or 15, and here they end at 5."""
    quantizer = FinalQuantizer(torch.tensor(3.75 if signed else 7.5), bits=4, signed=signed, last_code=5)
    x = torch.tensor([-9.0, -2.6, -0.9, 0.2, 2.3, 2.6, 3.4, 9.0])
    codes = [-5, -5, -2, 0, 5, 5, 5, 5] if signed else [0, 0, 0, 0, 5, 5, 5, 5]
    assert quantizer.code_bounds() == ((-5, 5) if signed else (0, 5))
    assert quantizer.codes(x).tolist() == codes
    assert quantizer(x).tolist() == [0.5 * code for code in codes]
    stretch = torch.tensor([2.0] * 8)
    assert quantizer(2 * x, stretch).tolist() == [float(code) for code in codes]
    assert quantizer.codes(2 * x, stretch).tolist() == codes


def test_no_bits_and_off():
    quantizer = FinalQuantizer(torch.tensor(1.0), bits=0, signed=True)
    x = torch.randn(5)
    assert not quantizer(x).any()
    quantizer.turn_off()
    assert quantizer(x) is x
