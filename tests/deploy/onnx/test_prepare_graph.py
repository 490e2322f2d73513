"""What torch's exporter could not write, or would write as something else: the files compute it as torch does."""

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.onnx.export import export_float_onnx
from tests.deploy.exported import exported
from tests.graph.networks import randomize


class Masked(nn.Module):
    """What a mask of integers hides is zero."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, hidden):
        return self.layer(x) * (1.0 - hidden)


def test_a_number_minus_integers_is_exported_in_all_forms(tmp_path):
    inputs = (torch.randn(2, 4), torch.tensor([[1, 0, 0, 1], [0, 0, 1, 0]]))
    compressor = bb.attach(randomize(Masked(), 0).eval(), inputs, bb.Spec(prune=False))
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8))
    small = bb.deploy(compressor)
    for form in ("fast", "qdq"):
        bb.export_onnx(small, inputs, tmp_path / "small.onnx", form=form)
        bb.verify(compressor, small, tmp_path / "small.onnx", inputs)
    compressor.detach()
    export_float_onnx(compressor.model, inputs, tmp_path / "float.onnx")


class NothingSqueezed(nn.Module):
    """A dimension of more than one is squeezed, which changes nothing in torch, and is an error in ONNX."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, x):
        return self.layer(x).sigmoid().squeeze(1)


def test_a_squeeze_of_more_than_one_is_exported_in_all_forms(tmp_path):
    network = exported(NothingSqueezed(), torch.randn(2, 3, 4), count=8)
    for form in ("fast", "qdq"):
        network.verify(network.write(tmp_path / "network.onnx", form))


class Shares(nn.Module):
    """Numbers that are nearly zero or one: without them, zeros are divided by zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)
        self.register_buffer("gain", torch.tensor(1.000004))
        self.register_buffer("least", torch.tensor(1e-9))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.layer(x).relu()
        return (
            y / (y.sum(-1, keepdim=True) + 1e-15),
            (y + self.least).log() * self.gain,
            (y - 1e-9).sign(),
            y * 0.999995,
        )


def test_numbers_that_are_nearly_neutral_are_kept(tmp_path):
    model, inputs = randomize(Shares(), 0), torch.randn(2, 4)
    nn.init.constant_(model.layer.bias, -100.0)
    export_float_onnx(model, inputs, tmp_path / "float.onnx")
    found = onnxruntime.InferenceSession(tmp_path / "float.onnx").run(None, {"x": inputs.numpy()})
    for one, other in zip(found, model(inputs), strict=True):
        np.testing.assert_allclose(one, other.detach().numpy(), rtol=5e-7)


def test_files_divide_by_what_is_nearly_zero_as_the_deployed_network_does(tmp_path):
    network = exported(Shares(), torch.randn(2, 4), count=8)
    for form in ("fast", "qdq"):
        network.verify(network.write(tmp_path / "network.onnx", form))
