"""Interpolation between quantizers: numbers in the middle between two codes are common there, and rounded alike."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesbits as bb
from bayesbits.deploy.onnx.runtime import Session

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Upsampled(nn.Module):
    """Convolutions around an interpolation."""

    def __init__(self, **options) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()), nn.Conv2d(8, 4, 3)
        self.norm, self.options = nn.BatchNorm2d(4), options

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.last(F.interpolate(self.first(x), **self.options)))


def fixed(model: nn.Module, output_bits: int) -> bb.Compressor:
    compressor = bb.attach(model.eval(), IMAGES[:1], bb.Spec.for_backend("onnxruntime"))
    compressor.calibrate([IMAGES])
    plan = bb.Plan.uniform(compressor.topology, 8, 8)
    compressor.fix(bb.Plan(plan.bits | {"last.input": output_bits}, plan.kept))
    return compressor


@pytest.mark.parametrize(
    ("options", "output_bits"),
    [
        ({"size": (8, 15), "mode": "bilinear", "align_corners": True}, 4),
        ({"size": (8, 15), "mode": "bilinear", "align_corners": True}, 8),
        ({"scale_factor": 2, "mode": "bilinear"}, 8),
        ({"scale_factor": 2, "mode": "nearest"}, 2),
    ],
)
def test_the_whole_file_is_equal_where_the_weights_of_the_interpolation_are_exact(options, output_bits, tmp_path):
    compressor = fixed(Upsampled(**options), output_bits)
    small = bb.deploy(compressor)
    path = tmp_path / "network.onnx"
    bb.export_onnx(small, IMAGES[:1], path)
    bb.verify(compressor, small, path, IMAGES)
    session = Session(path)
    (found,) = session.run({session.inputs[0]: IMAGES.numpy()}).values()
    assert np.array_equal(found, small(IMAGES).detach().numpy())


def test_other_weights_and_the_form_of_other_runtimes_are_verified(tmp_path):
    compressor = fixed(Upsampled(size=(11, 13), mode="bilinear"), 4)
    small = bb.deploy(compressor)
    for form in ("fast", "compact", "qdq"):
        path = tmp_path / f"{form}.onnx"
        bb.export_onnx(small, IMAGES[:1], path, form)
        bb.verify(compressor, small, path, IMAGES)
