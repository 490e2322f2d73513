"""What all quantizers share; the conformance suite in tests/methods/test_quantizer.py runs over every one of them."""

import pytest
import torch

from bayesbits.nn import GatedQuantizer, Quantizer


def test_the_base_class_leaves_the_equation_to_others():
    quantizer = Quantizer(signed=True, bits=(4,), learn_range=True)
    for call in (lambda: quantizer(torch.ones(1)), quantizer.effective_bits, quantizer.range_parameters):
        with pytest.raises(NotImplementedError):
            call()
    assert quantizer.width_parameters() == []
    assert quantizer.alpha is None
    with pytest.raises(ValueError, match="two ends"):
        quantizer.set_kind("asymmetric")


def test_parameters_of_a_gated_quantizer_by_group():
    quantizer = GatedQuantizer(signed=False, asymmetric=True)
    assert quantizer.width_parameters() == [quantizer.gates.logits]
    assert quantizer.possible_range_parameters() == [quantizer.log_beta, quantizer.log_alpha]
    quantizer.set_range(1.0, signed=False)
    assert quantizer.range_parameters() == [quantizer.log_beta]
    assert quantizer.possible_range_parameters() == [quantizer.log_beta, quantizer.log_alpha]
    quantizer.log_beta.requires_grad_(False)
    assert quantizer.possible_range_parameters() == []
