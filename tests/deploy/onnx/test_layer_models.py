"""Models of single layers: the kernels that they become, their numbers of channels, and their layout."""

from dataclasses import replace

import numpy as np
import pytest

from bayesbits.deploy.onnx.layer_models import (
    conversion_model,
    empty_model,
    example_of,
    layer_model,
    with_channels,
)
from bayesbits.deploy.onnx.runtime import Session, operation_counts
from bayesbits.records.integer_network import IntegerLayer

CONV = IntegerLayer(
    name="conv", kind="conv", parameter="conv.weight", arithmetic="integer", reason=None, bits=8,
    weight_shape=(16, 8, 3, 3), bias=True, input="conv.input", output="next.input", output_low=0, output_high=255,
    stride=(2, 2), padding=(1, 1), dilation=(1, 1), output_padding=(), groups=1, macs=1,
)  # fmt: skip
DEPTHWISE = replace(CONV, weight_shape=(8, 1, 3, 3), groups=8)
GROUPED = replace(CONV, weight_shape=(16, 4, 3, 3), groups=2)
TRANSPOSED = replace(CONV, kind="conv_transpose", weight_shape=(8, 16, 2, 2), padding=(0, 0), output_padding=(0, 0))
LINEAR = replace(CONV, kind="linear", weight_shape=(16, 8), stride=(), padding=(), dilation=())
IMAGE = (1, 8, 6, 6)


def output_of(model):
    (result,) = Session(model, threads=1).run(example_of(model)).values()
    return result


@pytest.mark.parametrize(
    ("layer", "form", "x_shape", "kernel", "y_shape"),
    [
        (CONV, "codes", IMAGE, "QLinearConv", (1, 3, 3, 16)),
        (CONV, "numbers", IMAGE, "Conv", (1, 16, 3, 3)),
        (CONV, "float", IMAGE, "Conv", (1, 16, 3, 3)),
        (DEPTHWISE, "codes", IMAGE, "QLinearConv", (1, 3, 3, 8)),
        (GROUPED, "codes", IMAGE, "QLinearConv", (1, 3, 3, 16)),
        (TRANSPOSED, "codes", IMAGE, "ConvTranspose", (1, 16, 12, 12)),
        (TRANSPOSED, "float", IMAGE, "ConvTranspose", (1, 16, 12, 12)),
        (LINEAR, "codes", (1, 8), "QGemm", (1, 16)),
        (LINEAR, "numbers", (1, 8), "MatMulIntegerToFloat", (1, 16)),
        (LINEAR, "float", (1, 8), "Gemm", (1, 16)),
        (LINEAR, "codes", (2, 5, 8), "QGemm", (2, 5, 16)),
        (LINEAR, "float", (2, 5, 8), "Gemm", (2, 5, 16)),
    ],
)
def test_a_layer_becomes_the_kernel_of_its_form(layer, form, x_shape, kernel, y_shape):
    model = layer_model(layer, form, x_shape)
    operations = operation_counts(model)
    assert operations.get(kernel) == 1
    if form == "codes" and layer.kind == "conv":  # the layout of whole networks: nothing has to be turned
        assert set(operations) == {"QLinearConv"}
    y = output_of(model)
    assert y.shape == y_shape
    assert y.dtype == (np.uint8 if form == "codes" else np.float32)
    assert y.std() > 0


def test_the_codes_of_a_narrow_tensor_are_clipped():
    narrow = layer_model(replace(CONV, output_low=-4, output_high=11), "codes", IMAGE)
    assert operation_counts(narrow)["Clip"] == 1
    assert output_of(narrow).max() == 15
    assert "Clip" not in operation_counts(layer_model(replace(CONV, output_low=-120, output_high=135), "codes", IMAGE))


@pytest.mark.parametrize(
    ("layer", "shape", "groups"),
    [
        (CONV, (6, 4, 3, 3), 1),
        (LINEAR, (6, 4), 1),
        (TRANSPOSED, (4, 6, 2, 2), 1),
        (DEPTHWISE, (6, 1, 3, 3), 6),
        (GROUPED, (16, 4, 3, 3), 2),
    ],
)
def test_a_layer_with_other_numbers_of_channels(layer, shape, groups):
    other = with_channels(layer, 4, 6)
    assert (other.weight_shape, other.groups) == (shape, groups)


def test_quantizers_and_nothing():
    assert operation_counts(conversion_model("quantize", [70], image=False)) == {"QuantizeLinear": 1}
    assert operation_counts(conversion_model("dequantize", [7, 3], image=False)) == {"DequantizeLinear": 1}
    assert output_of(conversion_model("quantize", [70], image=False)).shape == (70,)
    there, back = (conversion_model(what, [1, 5, 6, 7], image=True) for what in ("quantize", "dequantize"))
    assert operation_counts(there) == {"QuantizeLinear": 1, "Transpose": 1}
    assert operation_counts(back) == {"DequantizeLinear": 1, "Transpose": 1}
    assert (output_of(there).shape, output_of(there).dtype) == ((1, 6, 7, 5), np.uint8)
    assert (output_of(back).shape, output_of(back).dtype) == ((1, 5, 6, 7), np.float32)
    assert output_of(empty_model()).shape == (1,)
    assert Session(empty_model(), threads=1).fastest(example_of(empty_model()), 3) < 1
