"""Layers compute in integers where weight, input and bias allow it, and the others say why they do not."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.deploy.layer_weights import LayerWeights
from bayesbits.deploy.rewrite.choose_arithmetic import float_reason
from bayesbits.records.integer_network import Grid
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


@pytest.mark.parametrize(
    ("bits", "input_bits", "bias", "reason"),
    [
        (8, 8, None, None),
        (8, 8, 2.0**31 - 1, None),
        (8, 8, 2.0**31, "its bias does not fit into 32 bits at the step of its input and weight"),
        (8, 8, -(2.0**31), "its bias does not fit into 32 bits at the step of its input and weight"),
        (9, 8, None, "its weight has 9 bits"),
        (8, 9, None, "its input has 9 bits"),
        (8, None, None, "its input has 32 bits"),
    ],
)
def test_the_reason_for_float(bits, input_bits, bias, reason):
    """The bias is in whole numbers of a quarter: half of the input step, times half of the weight step."""
    layer: Any = SimpleNamespace(activation="x")
    grids = {} if input_bits is None else {"x": Grid("x", input_bits, False, 0.5, 0, 2**input_bits - 1, 1.0)}
    numbers = None if bias is None else torch.tensor([0.0, bias], dtype=torch.float64) * 0.25
    codes = torch.zeros(2, 3, dtype=torch.int16)
    assert float_reason(layer, LayerWeights(bits, codes, torch.tensor([0.5]), None, numbers), grids) == reason
    assert float_reason(layer, LayerWeights(32, None, None, codes.float(), numbers), grids) == "its weight has 32 bits"


def test_a_stored_bias_of_codes_fits():
    layer: Any = SimpleNamespace(activation="x")
    bias = torch.tensor([2**31 - 1, -(2**31) + 1], dtype=torch.int32)
    weights = LayerWeights(4, torch.zeros(2, 3, dtype=torch.int8), torch.tensor([1e-9]), None, bias)
    assert float_reason(layer, weights, {"x": Grid("x", 8, False, 1e-9, 0, 255, 1.0)}) is None
