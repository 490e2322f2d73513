"""A training step of an attached network on the device: no host sync, eager and in a CUDA graph alike."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import bayesbits as bb
from bayesbits.zoo import models
from tests.gpu.test_device import no_host_sync


@pytest.mark.parametrize("name", ["vgg7", "resnet20"])
def test_a_training_step_makes_no_host_sync(name):
    images, labels = torch.randn(8, 3, 32, 32, device="cuda"), torch.randint(10, (8,), device="cuda")
    model = models.create(name).cuda()
    compressor = bb.attach(model, images)
    compressor.calibrate([images])
    optimizer = torch.optim.Adam(
        [{"params": group["params"]} for group in compressor.parameter_groups()], lr=1e-3, capturable=True
    )

    def step() -> None:
        optimizer.zero_grad()
        (cross_entropy(model(images), labels) + 0.01 * compressor.penalty()).backward()
        optimizer.step()

    step()
    with no_host_sync():
        step()
        step()
