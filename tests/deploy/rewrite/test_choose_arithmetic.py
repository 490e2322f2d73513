"""Layers compute in integers where weight, input and bias allow it, and the others say why they do not."""

import pytest
import torch
from torch import nn

import bayesbits as bb
from tests.deploy.comparison import call
from tests.deploy.networks import IMAGES, chain, compress, make
from tests.graph.networks import randomize


@pytest.mark.parametrize("width", [16, 20, 32])
def test_wide_tensors_stay_in_float_and_are_listed(width):
    model, inputs = make("residual")
    compressor = compress(model, inputs, bb.Spec(bits=(8, width)), bits=(width,))
    small = bb.deploy(compressor)
    assert all(layer.arithmetic == "float" for layer in small.integer.layers)
    assert any(f"its weight has {width} bits" in note for note in small.integer.notes)
    expected, actual = call(compressor.model, inputs), call(small, inputs)
    assert ((actual - expected).norm() / expected.norm()).item() < 1e-4


def test_layers_that_rules_leave_in_float():
    torch.manual_seed(0)
    model, inputs = chain(nn.Conv2d(6, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU()), torch.randn(IMAGES)
    model(inputs)
    compressor = bb.attach(randomize(model).eval(), inputs, bb.Spec(bits=(8,), rules={"2": {"skip": True}}))
    compressor.calibrate([inputs])
    compressor.fix()
    small = bb.deploy(compressor)
    assert [layer.arithmetic for layer in small.integer.layers] == ["integer", "float", "integer"]
    assert "2 computes in float: its weight has 32 bits" in small.integer.notes
    expected, actual = call(compressor.model, inputs), call(small, inputs)
    assert ((actual - expected).norm() / expected.norm()).item() < 2e-2  # biases of the others are rounded
