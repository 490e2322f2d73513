"""Every method on a device: compiled, in bfloat16, recorded as a CUDA graph, and equal to what is deployed."""

import pytest
import torch
import torch.nn.functional as F

import bayesbits as bb
from bayesbits.methods import METHODS
from bayesbits.training.optimizers import make_optimizers
from bayesbits.training.step import TrainingStep
from tests.methods.quantizers import IMAGES, LABELS, network


@pytest.mark.filterwarnings("ignore:\\s*Online softmax is disabled")  # of torch's compiler
@pytest.mark.parametrize("name", METHODS)
def test_a_step_is_compiled_and_recorded(name):
    torch._dynamo.reset()
    model = network().cuda()
    images, labels = IMAGES.cuda(), LABELS.cuda()
    compressor = bb.attach(model, images[:1], bb.Spec(method=name, bits=(2, 4, 8)))
    compressor.calibrate([images])
    config = bb.SearchConfig(precision="bfloat16", channels_last=True, compile=True, cuda_graph=True)
    step = TrainingStep(
        model, compressor, F.cross_entropy, make_optimizers(compressor, config), config, mu=0.01
    )  # fmt: skip
    losses = [step(images, labels) for _ in range(12)]
    assert all(bool(torch.isfinite(values).all()) for values in losses)
    assert step.execution is not None
    assert step.execution.compiled, step.execution
    assert step.execution.recorded, step.execution


@pytest.mark.parametrize("name", METHODS)
def test_what_was_trained_on_the_device_is_deployed(name):
    model = network().cuda()
    images, labels = IMAGES.cuda(), LABELS.cuda()
    compressor = bb.attach(model, images[:1], bb.Spec(method=name, bits=(2, 4, 8)))
    plan = bb.search(
        compressor, [(images, labels)] * 3, F.cross_entropy, bb.SearchConfig(epochs=1), progress=False
    )  # fmt: skip
    compressor.fix(plan)
    if name == "pact":
        with pytest.raises(ValueError, match="cannot be deployed"):
            bb.deploy(compressor)
        return
    torch.testing.assert_close(bb.deploy(compressor)(IMAGES), model.eval().cpu()(IMAGES), rtol=1e-3, atol=1e-3)
