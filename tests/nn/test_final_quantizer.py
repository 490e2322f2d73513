"""A quantizer that is final: it keeps a range as it is."""

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


def test_no_bits_and_off():
    quantizer = FinalQuantizer(torch.tensor(1.0), bits=0, signed=True)
    x = torch.randn(5)
    assert not quantizer(x).any()
    quantizer.turn_off()
    assert quantizer(x) is x
