"""Padding in front of a convolution: absorbed where that is exact, and the same result in the runtime."""

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.onnx.absorb_padding import absorb_padding
from bayesbits.deploy.onnx.runtime import Session

ZERO = 7
PADS = [0, 0, 2, 0, 0, 0, 1, 3]  # 2 above, 1 below, 3 to the right


def model_of(
    pads: list[int] = PADS, value: int = ZERO, mode: str = "constant", second_reader: bool = False
) -> ModelProto:
    generator = np.random.default_rng(0)
    constants = {
        "pads": np.array(pads), "value": np.uint8(value), "step": np.float32(0.1), "zero": np.uint8(ZERO),
        "weight": generator.normal(size=(2, 3, 2, 2)).astype(np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("Pad", ["x", "pads", "value"], ["padded"], mode=mode),
        helper.make_node("DequantizeLinear", ["padded", "step", "zero"], ["numbers"]),
        helper.make_node("Conv", ["numbers", "weight"], ["y"], pads=[0, 1, 0, 0], kernel_shape=[2, 2]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    if second_reader:
        nodes.append(helper.make_node("Identity", ["padded"], ["z"]))
        outputs.append(helper.make_tensor_value_info("z", TensorProto.UINT8, None))
    inputs = [helper.make_tensor_value_info("x", TensorProto.UINT8, [1, 3, 5, 6])]
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def kinds(nodes: list[NodeProto]) -> list[str]:
    return [node.op_type for node in nodes]


def output(model: ModelProto) -> NDArray[np.float32]:
    x = np.random.default_rng(1).integers(0, 256, (1, 3, 5, 6)).astype(np.uint8)
    return Session(model).run({"x": x})["y"]


def test_the_convolution_pads_each_side_by_as_much() -> None:
    model = model_of()
    before = output(model)
    absorb_padding(model.graph)
    assert kinds(model.graph.node) == ["DequantizeLinear", "Conv"]
    assert next(list(a.ints) for a in model.graph.node[1].attribute if a.name == "pads") == [2, 1, 1, 3]
    np.testing.assert_array_equal(output(model), before)


@pytest.mark.parametrize(
    "other",
    [
        {"value": ZERO + 1},  # not the code of zero
        {"mode": "edge"},
        {"second_reader": True},
        {"pads": [0, 1, 2, 0, 0, 0, 1, 3]},  # channels
        {"pads": [0, 0, -1, 0, 0, 0, 1, 3]},  # takes rows away
    ],
)
def test_other_padding_stays(other: dict[str, object]) -> None:
    model = model_of(**other)  # type: ignore[arg-type]
    absorb_padding(model.graph)
    assert kinds(model.graph.node)[:3] == ["Pad", "DequantizeLinear", "Conv"]


class SamePadding(nn.Module):
    """Pads more behind than in front, as networks that come from TensorFlow do."""

    def __init__(self) -> None:
        super().__init__()
        self.pad, self.first, self.second = nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(3, 8, 3, 2), nn.Conv2d(8, 4, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.pad(torch.relu(self.first(self.pad(x))))).mean((2, 3))


def test_a_network_without_copies_of_codes_for_padding(tmp_path) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(4, 3, 16, 16)
    compressor = bb.attach(SamePadding().eval(), inputs[:1], bb.Spec.for_backend("onnxruntime"))
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8))
    small, path = bb.deploy(compressor), tmp_path / "network.onnx"
    bb.export_onnx(small, inputs[:1], path)
    assert kinds(onnx.load(path).graph.node).count("Pad") == 1, "of the network's input, before it is quantized"
    assert len(bb.verify(compressor, small, path, inputs).integer_layers) == 2
