"""Padding with zeros and a max-pooling of negative numbers: the runtime computes both, as torch does."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import ModelProto, TensorProto, helper, numpy_helper
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.onnx.custom_nodes import quiet_exporter, translate
from bayesbits.deploy.onnx.export import export_float_onnx
from bayesbits.deploy.onnx.runtime import Session, operation_counts
from bayesbits.deploy.onnx.zero_padding import keep_zero_padding

X = -1.0 - torch.arange(2 * 7 * 6, dtype=torch.float32).reshape(1, 2, 7, 6) / 10


def model_of(padding: int, ceil_mode: bool, element_type: int = TensorProto.FLOAT) -> ModelProto:
    nodes = [
        helper.make_node("Pad", ["x", "amounts", "zero"], ["padded"]),
        helper.make_node(
            "MaxPool", ["padded"], ["out"], kernel_shape=[3, 3], strides=[2, 2], pads=[padding] * 4, ceil_mode=ceil_mode
        ),
    ]
    values = [helper.make_tensor_value_info(name, element_type, None) for name in ("x", "out", "padded")]
    zero = np.zeros((), np.float32 if element_type == TensorProto.FLOAT else np.uint8)
    constants = {"amounts": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "zero": zero}
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "graph", values[:1], values[1:2], initializers, value_info=values[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    model.ir_version = 10
    keep_zero_padding(model)
    return model


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_a_border_of_zeros_is_above_negative_numbers(padding: int, ceil_mode: bool) -> None:
    expected = F.max_pool2d(F.pad(X, (1, 1, 1, 1)), 3, 2, padding, ceil_mode=ceil_mode)
    assert bool((expected == 0).any())
    assert bool((expected < 0).any())
    found = Session(model_of(padding, ceil_mode)).run({"x": X.numpy()})["out"]
    np.testing.assert_array_equal(found, expected.numpy())


def test_codes_are_padded_by_the_pooling() -> None:
    assert operation_counts(model_of(0, False, TensorProto.UINT8)) == {"MaxPool": 1}


@pytest.mark.parametrize(
    ("kernel", "padding", "own", "counts"),
    [
        (1, 1, 0, {"Pad": 1, "AveragePool": 1}),
        (2, 1, 0, {"AveragePool": 1}),
        (2, 2, 0, {"Pad": 1, "AveragePool": 1}),
        (2, 1, 1, {"Pad": 1, "Max": 1, "AveragePool": 1}),
    ],
)
def test_padding_that_reaches_as_far_as_the_kernel_stays_apart(kernel, padding, own, counts) -> None:
    class Averages(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.avg_pool2d(F.pad(x, (padding, 0, padding, 0)), kernel, 2, own)

    with quiet_exporter():
        model = translate(torch.export.export(Averages(), (X,)), 20)
    keep_zero_padding(model)
    assert operation_counts(model) == counts
    (found,) = Session(model).run({"x": X.numpy()}).values()
    np.testing.assert_allclose(found, Averages()(X).numpy(), rtol=1e-6)


@pytest.mark.parametrize("own", [0, 1])
def test_codes_stay_apart_from_a_padding_that_reaches_as_far_as_the_kernel(own: int) -> None:
    model = model_of(own, False, TensorProto.UINT8)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([0, 0, 3, 0, 0, 0, 0, 0]), "amounts"))
    keep_zero_padding(model)
    x = (-X).to(torch.uint8)
    expected = F.max_pool2d(F.pad(x.float(), (0, 0, 3, 0)), 3, 2, own)
    np.testing.assert_array_equal(Session(model).run({"x": x.numpy()})["out"], expected.numpy())


class PaddedPool(nn.Module):
    """A convolution, a border of zeros, a max-pooling, and a group norm, as in BiT."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.max_pool2d(F.pad(self.first(x), (1, 1, 1, 1)), 3, 2)
        return self.last(F.relu(self.norm(pooled)))


@pytest.mark.parametrize("residual_bits", [None, 8])
def test_files_keep_the_border(tmp_path: Path, residual_bits: int | None) -> None:
    torch.manual_seed(0)
    network, x = PaddedPool().eval(), torch.randn(2, 3, 9, 9)
    nn.init.constant_(network.first.bias, -3.0)  # every pooled number would be negative
    export_float_onnx(network, x, tmp_path / "float.onnx")
    found = Session(tmp_path / "float.onnx").run({"x": x.numpy()})["output"]
    np.testing.assert_allclose(found, network(x).detach().numpy(), atol=1e-5)
    compressor = bb.attach(network, x, bb.Spec(residual_bits=residual_bits))
    compressor.calibrate([x])
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8))
    small = bb.deploy(compressor)
    bb.export_onnx(small, x, tmp_path / "small.onnx")
    bb.verify(compressor, small, tmp_path / "small.onnx", [x])
