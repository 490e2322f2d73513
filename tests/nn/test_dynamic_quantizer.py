"""A quantizer without a range of its own: the grid of each tensor, gradients, modes, and what it refuses."""

import pytest
import torch

from bayesbits.nn.dynamic_quantizer import DynamicQuantizer


def test_every_tensor_has_the_grid_of_its_own_range():
    quantizer, x = DynamicQuantizer(), torch.randn(3, 5)
    for scale in (1.0, 100.0):
        step = (scale * x).aminmax()
        step = ((step.max.clamp(min=0) - step.min.clamp(max=0)) / 255).item()
        found = quantizer(scale * x) / step
        torch.testing.assert_close(found, found.round(), rtol=0, atol=1e-4)
        assert (quantizer(scale * x) - scale * x).abs().max() <= step * 0.51
        high, low = quantizer.range_of(scale * x)
        assert ((high - low) / 255).item() == pytest.approx(step, rel=1e-6)
        assert quantizer.codes(scale * x).unique().numel() > 10


def test_an_examples_codes_depend_on_its_batch():
    quantizer, x = DynamicQuantizer(), torch.linspace(-1, 1, 7).reshape(1, 7)
    alone, beside = quantizer(x), quantizer(torch.cat([x, 50 * x]))[:1]
    assert not torch.equal(alone, beside)


def test_gradients_pass_straight_through_and_the_output_is_exact():
    quantizer = DynamicQuantizer().train()
    x = torch.randn(1000, requires_grad=True)
    y = quantizer(x)
    factors = torch.randn(1000)
    (y * factors).sum().backward()
    assert torch.equal(x.grad, factors)
    high, low = quantizer.range_of(x)
    step = (high - low) / 255
    assert torch.equal(y, (y / step).round() * step)
    assert not [parameter for parameter in quantizer.parameters() if parameter.requires_grad]


def test_precision_empty_tensors_and_off():
    quantizer, x = DynamicQuantizer(), torch.randn(4)
    assert quantizer(x, dtype=torch.bfloat16).dtype == torch.bfloat16
    assert quantizer(x.to(torch.bfloat16)).dtype == torch.bfloat16
    assert quantizer(torch.zeros(0, 3)).shape == (0, 3)
    quantizer.turn_off()
    assert torch.equal(quantizer(x), x)


def test_the_only_widths_are_8_bits_and_float():
    quantizer = DynamicQuantizer()
    quantizer.fix()
    assert (quantizer.mode, quantizer.effective_bits()) == ("fixed", 8)
    with pytest.raises(ValueError, match="to 8 bits, and cannot have 4: give it 8 bits, or 32"):
        quantizer.fix(4)
    quantizer.fix(32)
    assert quantizer.mode == "off"
    quantizer.learn()
    assert quantizer.mode == "fixed"
    with pytest.raises(ValueError, match="no range that could be set"):
        quantizer.set_range(1.0)


def test_its_state_holds_no_range():
    quantizer = DynamicQuantizer()
    quantizer(torch.randn(5))
    other = DynamicQuantizer()
    other.turn_off()
    other.load_state_dict(quantizer.state_dict())
    assert other.mode == "fixed"
    assert set(quantizer.state_dict()) == {"gates.logits", "_extra_state"}
    assert quantizer.range_parameters() == []
    assert "8 bits by the range of each tensor" in repr(quantizer)
