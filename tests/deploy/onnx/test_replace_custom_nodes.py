"""Custom nodes of a graph made by hand become standard nodes with readable names."""

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import ModelProto, NodeProto, TensorProto, helper
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.onnx.custom_nodes import DOMAIN
from bayesbits.deploy.onnx.replace_custom_nodes import replace_custom_nodes
from bayesbits.deploy.onnx.runtime import Session, _optimized, operation_counts
from bayesbits.deploy.onnx.tensor_names import MappedTensor, read_tensor_map
from bayesbits.records.integer_network import Grid

GRIDS = {"a": Grid("a", 8, False, 0.5, 0, 255, 127.5), "b": Grid("b", 4, True, 0.25, -7, 7, 1.875)}


def custom(kind: str, of: str, source: str, output: str) -> NodeProto:
    return helper.make_node(kind, [source], [output], domain=DOMAIN, of=of, node=f"program_{output}")


def replaced(*nodes: NodeProto) -> ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("in", "out")]
    graph = helper.make_graph(list(nodes), "graph", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 10
    structure = SimpleNamespace(inputs=("x",), outputs=("y",), input_shapes=(), sizes=None)
    replace_custom_nodes(model, SimpleNamespace(grid=GRIDS.__getitem__, structure=structure), compact=False)
    return model


def test_operands_of_an_addition_are_dequantized_for_a_sum():
    model = replaced(
        custom("Quantize", "a", "in", "1"),
        custom("Quantize", "b", "in", "2"),
        custom("Dequantize", "a", "1", "3"),
        custom("Dequantize", "b", "2", "4"),
        helper.make_node("Add", ["3", "4"], ["out"], name="add"),
    )
    assert [node.op_type for node in model.graph.node] == [
        "QuantizeLinear", "QuantizeLinear", "Clip", "DequantizeLinear", "DequantizeLinear", "Sum",
    ]  # fmt: skip
    assert {opset.domain for opset in model.opset_import} == {""}
    assert read_tensor_map(model) == (
        MappedTensor("program_1", "Quantize", "a", "a.quantized", 0),
        MappedTensor("program_2", "Quantize", "b", "b.quantized", 128),
    )
    x = np.array([1.3, -0.3, 9.0, -9.0], np.float32)
    assert Session(model).run({"x": x})["y"].tolist() == [1.5 + 1.25, 0.0 - 0.25, 9.0 + 1.75, 0.0 - 1.75]


def test_numbers_that_float_operations_read_are_dequantized_in_one_node():
    model = replaced(
        custom("Quantize", "b", "in", "1"),
        custom("Dequantize", "b", "1", "2"),
        helper.make_node("Add", ["2", "2"], ["3"], name="add"),
        helper.make_node("Mul", ["3", "2"], ["out"], name="mul"),
    )
    kinds = [node.op_type for node in model.graph.node]
    assert kinds == ["QuantizeLinear", "Clip", "DequantizeLinear", "Sum", "Mul"]
    x = np.array([1.3, -0.3, 9.0, -9.0], np.float32)
    numbers = np.array([1.25, -0.25, 1.75, -1.75])
    assert Session(model).run({"x": x})["y"].tolist() == (2 * numbers * numbers).tolist()


@pytest.mark.parametrize(
    ("operation", "inputs", "at_once"),
    [
        ("Mul", ["2", "2"], False),
        ("Mul", ["2", "in"], True),
        ("Sigmoid", ["2"], False),
        ("Sqrt", ["2"], True),
    ],
)
def test_the_runtime_finds_no_operation_between_quantizers_to_make_integer(operation, inputs, at_once):
    model = replaced(
        custom("Quantize", "a", "in", "1"),
        custom("Dequantize", "a", "1", "2"),
        helper.make_node(operation, inputs, ["3"], name="between"),
        custom("Quantize", "a", "3", "4"),
        custom("ToFloat", "a", "4", "out"),
    )
    kinds = [node.op_type for node in model.graph.node]
    assert ("DequantizeLinear" in kinds, "Cast" in kinds[:-1]) == (at_once, not at_once)
    optimized = [node.op_type for node in _optimized(model).graph.node]
    assert operation in optimized


def test_a_second_call_has_a_number_behind_its_name():
    model = replaced(
        custom("Quantize", "a", "in", "1"),
        custom("Dequantize", "a", "1", "2"),
        custom("Quantize", "a", "2", "3"),
        custom("ToFloat", "a", "3", "out"),
    )
    assert [tensor.value for tensor in read_tensor_map(model)] == ["a.quantized", "a.quantized@2"]
    assert [value.name for value in model.graph.output] == ["y"]
    assert Session(model).run({"x": np.array([1.3, 0, 500, -1], np.float32)})["y"].tolist() == [3, 0, 255, 0]


def test_float_codes_become_uint8_codes_and_numbers_again():
    model = replaced(
        custom("ToUint8", "b", "in", "1"), custom("ToFloat", "b", "1", "2"), custom("Scale", "b", "2", "out")
    )
    assert Session(model).run({"x": np.array([-7, 0, 3, 7], np.float32)})["y"].tolist() == [-1.75, 0.0, 0.75, 1.75]


class Depthwise(nn.Module):
    """A depthwise convolution behind a layer that emits its codes, and one behind a float operation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem, self.wide = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, channels, 1)
        self.first = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.last = nn.Conv2d(channels, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(F.relu(self.wide(F.hardswish(self.stem(x)))))
        x = self.second(F.hardswish(x))
        return self.last(F.hardswish(x).mean((2, 3), keepdim=True)).flatten(1)


@pytest.mark.parametrize(("form", "bits"), [("fast", 8), ("compact", 4)])
def test_depthwise_convolutions_of_whole_blocks_are_verified(tmp_path, form, bits):
    torch.manual_seed(0)
    network, inputs = Depthwise(30).eval(), torch.randn(4, 3, 12, 12)
    compressor = bb.attach(network, inputs, bb.Spec.for_backend("onnxruntime"))
    compressor.calibrate([inputs])
    plan = bb.Plan.uniform(compressor.topology, bits, 8, residual_bits=8)
    compressor.fix(bb.Plan(plan.bits | {"stem.weight": 8, "first.input": bits}))
    small, path = bb.deploy(compressor), tmp_path / "network.onnx"
    bb.export_onnx(small, inputs, path, form=form)
    assert bb.verify(compressor, small, path, inputs).integer_layers == ("stem", "wide", "first", "second", "last")
    nodes = onnx.load(str(path)).graph.node
    groups = [attribute.i for node in nodes for attribute in node.attribute if attribute.name == "group"]
    assert sorted(groups) == [1, 1, 32, 32]  # the last layer is a matrix product
    padded = {node.output[0] for node in nodes if node.op_type == "Pad"}
    assert "second/input/padded" in padded
    assert "first/input/padded" not in padded


class Bottleneck(nn.Module):
    """A depthwise convolution between two others, with one more reader of a tensor in front of it or behind it."""

    def __init__(self, also: str) -> None:
        super().__init__()
        self.wide, self.last = nn.Conv2d(3, 30, 1), nn.Conv2d(8, 4, 3)
        self.depthwise, self.narrow = nn.Conv2d(30, 30, 3, padding=1, groups=30), nn.Conv2d(30, 8, 1)
        self.other, self.also = nn.Conv2d(30, 8, 1, groups=2), also

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.wide(x))
        y = F.relu(self.depthwise(x))
        z = F.relu(self.narrow(y))
        if self.also:
            z = z + self.other(x if self.also == "in front" else y)
        return self.last(z).mean((2, 3))


@pytest.mark.parametrize(
    ("also", "sliced", "more"),
    [
        ("", set(), {"wide": 2, "depthwise": 2}),
        ("in front", {"wide"}, {"depthwise": 2}),
        ("behind", {"depthwise"}, {"wide": 2}),
    ],
)
def test_channels_of_zeros_are_cut_off_only_where_something_reads_the_others(tmp_path, also, sliced, more):
    torch.manual_seed(0)
    network, inputs = Bottleneck(also).eval(), torch.randn(4, 3, 12, 12)
    compressor = bb.attach(network, inputs, bb.Spec.for_backend("onnxruntime"))
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan.uniform(compressor.topology, residual_bits=8))
    small, path = bb.deploy(compressor), tmp_path / "network.onnx"
    bb.export_onnx(small, inputs, path)
    found = bb.verify(compressor, small, path, 2 * inputs)
    assert found.wrong == ()
    assert all(tensor.differing_end_to_end == 0 for tensor in found.runtime_tensors if tensor.exact)
    model = onnx.load(str(path))
    assert {node.output[0].split(".")[0] for node in model.graph.node if node.op_type == "Slice"} == sliced
    assert {one.of: one.more_channels for one in read_tensor_map(model) if one.more_channels} == more
    assert operation_counts(path)["QLinearConv"] >= 3


class Skip(nn.Module):
    """An addition in front of a LayerNormalization, as in transformers."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        x = F.gelu(self.first(x))
        return self.norm(self.second(x) + x)


@pytest.mark.parametrize("activations", ["static", "dynamic", "float"])
def test_the_runtime_leaves_additions_in_front_of_a_normalization_alone(activations, tmp_path):
    x = torch.randn(3, 5, 8)
    compressor = bb.attach(Skip().eval(), x, bb.Spec.for_backend("onnxruntime", activations=activations))
    compressor.calibrate([x])
    compressor.fix()
    small = bb.deploy(compressor)
    bb.export_onnx(small, x, tmp_path / "network.onnx")
    operations = [node.op_type for node in _optimized(tmp_path / "network.onnx").graph.node]
    assert {"Sum", "LayerNormalization"} <= set(operations)
    assert "SkipLayerNormalization" not in operations
    assert bb.verify(compressor, small, tmp_path / "network.onnx", x).failure is None


class Projections(nn.Module):
    """Three layers that multiply one tensor by equal numbers, each by itself, and a fourth that reads another."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.other = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        query, key, value = (layer(2 * x) for layer in (self.query, self.key, self.value))
        return F.softmax(query, -1) * key + F.silu(value) * self.other(x)


@pytest.mark.parametrize("shared", [True, False])
def test_layers_with_equal_grids_read_the_codes_of_one_quantizer(shared, tmp_path):
    x = torch.randn(6, 3, 4)
    compressor = bb.attach(Projections().eval(), x, bb.Spec.for_backend("onnxruntime"))
    compressor.calibrate([x])
    bits = dict(bb.Plan.uniform(compressor.topology, 8, 8).bits)
    compressor.fix(bb.Plan(bits if shared else bits | {"key.input": 4}))
    small = bb.deploy(compressor)
    bb.export_onnx(small, x, tmp_path / "network.onnx")
    nodes = onnx.load(tmp_path / "network.onnx").graph.node
    assert sum(node.op_type == "QuantizeLinear" for node in nodes) == (2 if shared else 3)
    read = {node.name: node.input[0] for node in nodes if node.op_type == "MatMulInteger"}
    assert (read["query"] == read["key"]) is shared
    assert read["query"] == read["value"] != read["other"]
    assert bb.verify(compressor, small, tmp_path / "network.onnx", x).failure is None
