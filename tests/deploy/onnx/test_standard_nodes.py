"""The nodes of every kind of layer: fused to integer kernels, with the values computed by hand."""

import pytest
import torch
from torch import nn

import bayesbits as bb


@pytest.mark.parametrize("function", [nn.ReLU, nn.Sigmoid, nn.Tanh, nn.GELU])
def test_a_layer_whose_numbers_are_not_quantized_at_once_stays_in_integers(function, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), function(), nn.Flatten(), nn.Linear(144, 8), function(), nn.Linear(8, 4))
    inputs = torch.randn(64, 3, 8, 8)
    compressor = bb.attach(model.eval(), inputs[:1], bb.Spec(rules={"5": {"bits": 16}}))
    compressor.calibrate([inputs])
    plan = bb.Plan.uniform(compressor.topology, 4, 4)
    compressor.fix(bb.Plan(plan.bits | {"5.weight": 16, "5.input": 16}))
    small = bb.deploy(compressor)
    bb.export_onnx(small, inputs[:1], tmp_path / "network.onnx")
    assert bb.verify(compressor, small, tmp_path / "network.onnx", inputs).integer_layers == ("0", "3")
