"""The contenders of the benchmark of training steps."""

import torch
from torch import nn

from benchmarks.training import _StepSizeQuantizer, fake_quantize, hours_of_imagenet


def test_hours_of_the_papers_training():
    assert hours_of_imagenet(0.1, batch=256) == 5.6  # 1,281,167 images / 256 x 40 epochs x 0.1 s / 3600


def test_learned_step_size_quantization_by_hand():
    quantizer = _StepSizeQuantizer(torch.full((4,), 2.0), signed=True)
    torch.testing.assert_close(quantizer.step.item(), 2 * 2.0 / 127**0.5)
    quantizer.step.data.fill_(0.5)
    x = torch.tensor([0.3, -1.1, 1000.0, -1000.0], requires_grad=True)
    y = quantizer(x)
    assert y.tolist() == [0.5, -1.0, 63.5, -63.5]
    y.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 0.0, 0.0]
    # By the step: code - x / step inside the range, the last code outside; times 1 / sqrt(elements x 127).
    slope = (1 - 0.6) + (-2 + 2.2) + 127 - 127
    torch.testing.assert_close(quantizer.step.grad.item(), slope * (4 * 127) ** -0.5, rtol=1e-4, atol=0)


def test_every_layer_and_its_input_get_a_fake_quantizer():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    images = torch.linspace(-1, 1, 24).reshape(2, 3, 2, 2)
    before = model(images)
    fake_quantize(model, images)
    assert [model[0].input_quantizer.lowest, model[3].input_quantizer.lowest] == [-127, 0]
    difference = (model(images) - before).abs().max()
    assert 0 < difference < 0.05
