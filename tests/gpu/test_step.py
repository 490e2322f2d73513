"""A step that is compiled and recorded computes what the eager one does."""

import logging

import pytest
import torch
import torch.nn.functional as F

import bayesbits as bb
from bayesbits.training.config import SearchConfig
from bayesbits.training.optimizers import make_optimizers
from bayesbits.training.step import TrainingStep
from bayesbits.zoo import models
from tests.training.test_compiled_gradients import both, with_batch_norms, without


def trained(name: str, batches: list[tuple[torch.Tensor, torch.Tensor]], **options):
    torch.manual_seed(0)
    model = models.create(name).cuda()
    compressor = bb.attach(model, batches[0][0][:1])
    compressor.calibrate([batches[0][0]])
    # Weights and ranges move little: whether a value is rounded up or down is chance, and steps far apart would be too.
    config = SearchConfig(gates={"lr": 0.05}, weights={"lr": 1e-5}, ranges={"lr": 1e-5}, **options)
    optimizers = make_optimizers(compressor, config)
    step = TrainingStep(model, compressor, F.cross_entropy, optimizers, config, mu=0.1)
    losses = []
    for index, batch in enumerate(batches):
        optimizers.set_progress(index / len(batches))
        losses.append(step(*batch).clone())
    return torch.stack(losses), step, compressor


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
@pytest.mark.parametrize("name", ["vgg7", "resnet20"])
def test_compiled_and_recorded_equals_eager(name, caplog):
    torch.manual_seed(1)
    sizes = [64] * 8 + [24, 64]  # one of another size in between
    batches = [(torch.randn(n, 3, 32, 32, device="cuda"), torch.randint(10, (n,), device="cuda")) for n in sizes]
    with caplog.at_level(logging.WARNING, "bayesbits"), torch.backends.cudnn.flags(allow_tf32=False):
        eager, _, plain = trained(name, batches)
        recorded, step, compressor = trained(name, batches, compile=True, cuda_graph=True, channels_last=True)
    assert step._recorder.has_recorded, caplog.text
    assert not caplog.text
    torch.testing.assert_close(recorded[:2], eager[:2], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(recorded, eager, rtol=0.05, atol=0.05)
    # The gates of 4 and 8 bits: gradients of wider ones are sums of differences that float32 hardly holds, and of those
    # the optimizer sees little but the sign.
    logits = [
        torch.cat([q.gates.logits[:2] for q in handle.attachment.quantizers.values()]) for handle in (plain, compressor)
    ]
    assert (logits[0] < 5.9).any()
    torch.testing.assert_close(logits[1], logits[0], rtol=0.02, atol=0.02)


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
@pytest.mark.parametrize("network", [with_batch_norms, without])
def test_a_compiled_step_has_the_gradients_of_the_eager_one(network):
    with torch.backends.cudnn.flags(allow_tf32=False):
        eager, compiled = both(network, torch.device("cuda"), torch.float32)
    for name, gradient in eager.items():
        assert (compiled[name] - gradient).norm() <= 0.02 * gradient.norm() + 1e-7, name
