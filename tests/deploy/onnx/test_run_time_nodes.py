"""The nodes of layers that quantize their input at run time, with values computed by hand."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from onnx import ModelProto, TensorProto, helper

from bayesbits.deploy.onnx.layer_nodes import LayerWriter
from bayesbits.deploy.onnx.runtime import Session, operation_counts
from bayesbits.records.integer_network import IntegerLayer

LAYER = IntegerLayer(
    name="fc", kind="linear", parameter="fc.weight", arithmetic="integer", reason=None, bits=4, weight_shape=(2, 2),
    bias=True, input=None, output=None, output_low=0, output_high=0, stride=(), padding=(), dilation=(),
    output_padding=(), groups=1, macs=4, dynamic=True,
)  # fmt: skip
TENSORS = {
    "fc.codes": torch.tensor([[1, -2], [3, 4]], dtype=torch.int8),
    "fc.steps": torch.tensor([0.5, 0.25]),
    "fc.bias": torch.tensor([1.0, -1.0]),
    "other.codes": torch.tensor([[2, 0], [0, -1]], dtype=torch.int8),
    "other.steps": torch.tensor([2.0]),
}
X = np.array([[-1.0, 2.0], [0.5, 254.0]], np.float32)  # a step of 1, a zero point of 1, and a tie that goes to 0


def written(*layers: tuple[IntegerLayer, str], compact: bool = False) -> ModelProto:
    writer = LayerWriter(SimpleNamespace(tensors=TENSORS), compact=compact)
    for layer, name in layers:
        writer.layer(layer, "x", f"y_{name}", name, [None, 2])
    graph = helper.make_graph(
        writer.nodes, "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 2])],
        [helper.make_tensor_value_info(f"y_{name}", TensorProto.FLOAT, None) for _, name in layers],
        list(writer.constants.values()),
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("compact", [False, True])
def test_a_layer_by_hand(compact):
    model = written((LAYER, "fc"), compact=compact)
    # Codes -1, 2 and 0, 254: sums -5, 5 and -508, 1016; steps of 0.5 and 0.25; the bias.
    expected = [[-1.5, 0.25], [-253.0, 253.0]]
    assert Session(model).run({"x": X})["y_fc"].tolist() == expected
    assert Session(model, optimizing=False).run({"x": X})["y_fc"].tolist() == expected
    assert operation_counts(model) == {"DynamicQuantizeMatMul": 1}


def test_readers_of_a_tensor_share_its_quantizer():
    model = written((LAYER, "fc"), (replace(LAYER, name="other", bias=False), "other"))
    assert operation_counts(model) == {"DynamicQuantizeLinear": 1, "MatMulIntegerToFloat": 2}
    found = Session(model).run({"x": X})
    assert found["y_fc"].tolist() == [[-1.5, 0.25], [-253.0, 253.0]]
    assert found["y_other"].tolist() == [[-4.0, -4.0], [0.0, -508.0]]


def test_a_float_layer_reads_the_rounded_input():
    layer = replace(LAYER, arithmetic="float", bits=16)
    found = Session(written((layer, "fc"))).run({"x": X})["y_fc"]
    assert found.tolist() == [[-1.5, 0.25], [-253.0, 253.0]]
