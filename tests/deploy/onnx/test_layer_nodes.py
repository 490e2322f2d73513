"""The nodes of every kind of layer: fused to integer kernels, with the values computed by hand."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn
from torch.nn import functional as F

import bayesbits as bb
from bayesbits.deploy.onnx.layer_nodes import LayerWriter
from bayesbits.deploy.onnx.node_writer import NodeWriter
from bayesbits.deploy.onnx.runtime import Session, layer_of
from bayesbits.deploy.onnx.tensor_names import RUNTIME_DOMAIN
from bayesbits.deploy.onnx.zero_channels import missing_channels, pads_depthwise
from bayesbits.records.integer_network import Grid, IntegerLayer, IntegerNetwork


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
    assert bb.verify(compressor, small, tmp_path / "network.onnx", inputs).exact_layers == ("0", "3")


INPUT, OUTPUT = Grid("in", 8, False, 0.5, 0, 255, 127.5), Grid("out", 4, True, 2.0, -7, 7, 15.0)
LAYER = IntegerLayer(
    name="fc", kind="linear", parameter="fc.weight", arithmetic="integer", reason=None, bits=4, weight_shape=(2, 2),
    bias=True, input="in", output="out", output_low=-7, output_high=7, stride=(), padding=(), dilation=(),
    output_padding=(), groups=1, macs=4,
)  # fmt: skip
TENSORS = {
    "fc.codes": torch.tensor([[1, -2], [3, 4]], dtype=torch.int8),
    "fc.steps": torch.tensor([0.5]),
    "fc.bias": torch.tensor([10, -3], dtype=torch.int32),
}


class Network(SimpleNamespace):
    """The tensors and grids of a network, without its structure."""

    bias, adds_bias_to_numbers = IntegerNetwork.bias, IntegerNetwork.adds_bias_to_numbers
    codes = IntegerNetwork.codes


NETWORK = Network(tensors=TENSORS, grid={"in": INPUT, "out": OUTPUT}.__getitem__)
UINT8, FLOAT = TensorProto.UINT8, TensorProto.FLOAT


def run(writer: NodeWriter, x: np.ndarray, taken: int, returned: int, output: str = "y") -> np.ndarray:
    """The model of a writer's nodes, from x to y."""
    values = [helper.make_tensor_value_info("x", taken, x.shape), helper.make_tensor_value_info(output, returned, None)]
    graph = helper.make_graph(writer.nodes, "graph", values[:1], values[1:], list(writer.constants.values()))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(RUNTIME_DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 10
    return Session(model).run({"x": x})[output]


@pytest.mark.parametrize("compact", [False, True])
def test_a_linear_layer_that_emits_codes(compact):
    writer = LayerWriter(NETWORK, compact)
    writer.layer(LAYER, "x", "y", "fc", [None, 2])
    # 6 - 2 + 10 = 14 and 18 + 4 - 3 = 19, times 0.5 * 0.5 / 2: 1.75 and 2.375; then far beyond the bounds
    codes = run(writer, np.array([[6, 1], [0, 255]], np.uint8), UINT8, UINT8).astype(int) - 128
    assert codes.tolist() == [[2, 2], [-7, 7]]
    assert writer.constants["fc.weight"].data_type == (TensorProto.INT4 if compact else TensorProto.INT8)


def test_a_linear_layer_that_emits_numbers():
    writer = LayerWriter(NETWORK, compact=False)
    writer.layer(replace(LAYER, output=None), "x", "y", "fc", [None, 2])
    assert [node.op_type for node in writer.nodes] == ["Transpose", "MatMulInteger", "Add", "Cast", "Mul"]
    assert run(writer, np.array([[6, 1]], np.uint8), UINT8, FLOAT).tolist() == [[14 * 0.25, 19 * 0.25]]


@pytest.mark.parametrize("steps", [[0.5], [0.5, 2.0]])
@pytest.mark.parametrize("bias", [[0.125, -8.0], None])
def test_a_linear_layer_whose_bias_is_added_to_its_numbers(bias, steps):
    tensors = TENSORS | {"fc.steps": torch.tensor(steps), "fc.bias": torch.tensor(bias or [0.0, 0.0])}
    if bias is None:
        del tensors["fc.bias"]
    writer = LayerWriter(Network(tensors=tensors, grid=NETWORK.grid), compact=False)
    writer.layer(replace(LAYER, output=None, bias=bias is not None), "x", "y", "fc", [None, 1, 2])
    assert [node.op_type for node in writer.nodes] == ["Transpose", "MatMulIntegerToFloat"]
    first, second = bias or (0.0, 0.0)
    numbers = run(writer, np.array([[[6, 1]]], np.uint8), UINT8, FLOAT)
    assert numbers.tolist() == [[[4 * 0.25 + first, 22 * 0.5 * steps[-1] + second]]]


POINT = {"kind": "conv", "weight_shape": (2, 2, 1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}


def convolution(writer, codes, shape, **changes):
    """A convolution with these codes of its weight, written in front of y; returns its nodes."""
    writer.network = Network(tensors=TENSORS | {"fc.codes": codes}, grid=NETWORK.grid)
    writer.layer(replace(LAYER, **(POINT | {"weight_shape": tuple(codes.shape)} | changes)), "x", "y", "fc", shape)
    return [node.op_type for node in writer.nodes]


@pytest.mark.parametrize("compact", [False, True])
def test_a_convolution_of_one_position_that_emits_numbers_is_a_matrix_product(compact):
    writer = LayerWriter(NETWORK, compact)
    kinds = convolution(writer, TENSORS["fc.codes"].reshape(2, 2, 1, 1), [None, 2, 1, 1], output=None)
    assert "MatMulInteger" in kinds
    assert "ConvInteger" not in kinds
    numbers = run(writer, np.array([[6, 1], [0, 1]], np.uint8).reshape(2, 2, 1, 1), UINT8, FLOAT)
    assert numbers.shape == (2, 2, 1, 1)
    assert numbers.reshape(2, 2).tolist() == [[14 * 0.25, 19 * 0.25], [8 * 0.25, 1 * 0.25]]


@pytest.mark.parametrize(
    ("size", "changes"), [(2, {"stride": (2, 2)}), (3, {}), (1, {"padding": (1, 1)}), (1, {"groups": 2})]
)
def test_other_convolutions_that_emit_numbers_are_those_of_whole_numbers(size, changes):
    groups = changes.get("groups", 1)
    codes = TENSORS["fc.codes"][:, : 2 // groups].reshape(2, 2 // groups, 1, 1)
    stride, padding = changes.get("stride", (1, 1))[0], changes.get("padding", (0, 0))[0]
    output = (size + 2 * padding - 1) // stride + 1
    writer = LayerWriter(NETWORK, False)
    kinds = convolution(writer, codes, [None, 2, output, output], output=None, **changes)
    assert kinds.count("Conv") == 1
    assert not {"ConvInteger", "Split"} & set(kinds)
    x = np.array([[6, 1], [0, 255]], np.uint8).repeat(size * size, 1).reshape(2, 2, size, size)
    numbers = run(writer, x, UINT8, FLOAT)
    bias = TENSORS["fc.bias"].to(torch.float32)
    sums = F.conv2d(torch.from_numpy(x).float(), codes.float(), bias, stride, padding, 1, groups)
    assert numbers.tolist() == (0.25 * sums).tolist()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("channels", [301, 4000])
def test_sums_that_float32_does_not_hold_are_computed_in_parts(channels, bias):
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(100, 128, (2, channels, 3, 3), generator=generator).to(torch.int8)
    tensors = TENSORS | {"fc.codes": codes, "fc.bias": torch.tensor([2**24 + 1, -3], dtype=torch.int32)}
    writer = LayerWriter(Network(tensors=tensors, grid=NETWORK.grid), False)
    changes = {"kind": "conv", "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "output": None, "bias": bias}
    writer.layer(replace(LAYER, weight_shape=tuple(codes.shape), **changes), "x", "y", "fc", [None, 2, 1, 1])
    kinds = [node.op_type for node in writer.nodes]
    if channels == 4000:
        assert "ConvInteger" in kinds
        return
    assert kinds.count("Conv") > 1
    assert [layer_of(node.name) for node in writer.nodes if node.op_type == "Conv"] == ["fc"] * kinds.count("Conv")
    x = torch.randint(200, 256, (3, channels, 3, 3), generator=generator)
    sums = F.conv2d(x.double(), codes.double(), tensors["fc.bias"].double() if bias else None)
    assert sums.max() > 2**25  # in float32 most of them are rounded before the last one is added
    numbers = run(writer, x.numpy().astype(np.uint8), UINT8, FLOAT)
    assert numbers.tolist() == (sums.float() * 0.25).tolist()


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (2, 1), (3, 1), (4, 1), (6, 2)])
def test_channels_of_zeros_are_added_to_two_and_three(channels, groups, compact):
    torch.manual_seed(0)
    writer = LayerWriter(NETWORK, compact)
    codes = torch.randint(-7, 8, (2, channels // groups, 3, 3), dtype=torch.int8)
    kinds = convolution(writer, codes, [None, 2, 5, 5], padding=(1, 1), groups=groups)
    assert kinds.count("Pad") == (2 if channels in (2, 3) else 0)
    x = torch.randint(0, 9, (1, channels, 5, 5))
    sums = nn.functional.conv2d(x.float(), codes.float(), TENSORS["fc.bias"].float(), 1, 1, 1, groups)
    expected = (sums * 0.125).round().clamp(-7, 7) + 128
    assert run(writer, x.numpy().astype(np.uint8), UINT8, UINT8).tolist() == expected.to(torch.uint8).tolist()


DEPTHWISE = {"padding": (1, 1), "output_low": -5, "output_high": 6}


def steps_of(layers, per_channel):
    """Tensors of layers by name: random codes, and steps for each channel or one."""
    torch.manual_seed(0)
    tensors = {}
    for name, shape in layers.items():
        tensors[f"{name}.codes"] = torch.randint(-7, 8, shape, dtype=torch.int8)
        tensors[f"{name}.bias"] = torch.randint(-20, 20, shape[:1], dtype=torch.int32)
        tensors[f"{name}.steps"] = torch.tensor([0.25, 0.5]).repeat(shape[0])[: shape[0] if per_channel else 1]
    return tensors


def expected_codes(tensors, name, x, scale, groups, padding, low, high):
    sums = nn.functional.conv2d(
        x, tensors[f"{name}.codes"].float(), tensors[f"{name}.bias"].float(), 1, padding, 1, groups
    )
    return (sums * (scale * tensors[f"{name}.steps"].reshape(-1, 1, 1))).round().clamp(low, high)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(("channels", "padded"), [(12, True), (16, False), (24, False), (72, True)])
def test_a_depthwise_convolution_computes_whole_blocks_of_channels(channels, padded, per_channel, compact):
    """The convolution in front emits the channels of zeros, and its own channels for other readers."""
    tensors = steps_of({"fc": (channels, 3, 1, 1), "dw": (channels, 1, 3, 3)}, per_channel)
    writer = LayerWriter(Network(tensors=tensors, grid=NETWORK.grid), compact)
    first = replace(LAYER, **POINT | {"weight_shape": (channels, 3, 1, 1)})
    second = replace(
        LAYER,
        **POINT | DEPTHWISE | {"name": "dw", "weight_shape": (channels, 1, 3, 3), "input": "out", "groups": channels},
    )
    shape = [None, channels, 12, 12]
    assert pads_depthwise(second, shape) == padded
    writer.more_channels = {"fc": missing_channels(second, shape)}
    writer.layer(first, "x", "u", "fc", shape)
    writer.layer(second, "u", "y", "dw", shape)
    x = torch.randint(0, 9, (2, 3, 12, 12))
    middle = expected_codes(tensors, "fc", x.float(), 0.25, 1, 0, -7, 7)
    last = expected_codes(tensors, "dw", middle, 1.0, channels, 1, -5, 6)
    for name, codes in (("u", middle), ("y", last)):
        found = run(writer, x.numpy().astype(np.uint8), UINT8, UINT8, name)
        assert found.tolist() == (codes + 128).to(torch.uint8).tolist()
    assert "dw/input/padded" not in [node.output[0] for node in writer.nodes]
    groups = [attribute.i for node in writer.nodes for attribute in node.attribute if attribute.name == "group"]
    assert groups == [1, -(-channels // 16) * 16 if padded else channels]


@pytest.mark.parametrize("stride", [1, 2])
def test_a_depthwise_convolution_pads_its_input_where_nothing_in_front_does(stride):
    tensors = steps_of({"dw": (12, 1, 3, 3)}, True)
    writer = LayerWriter(Network(tensors=tensors, grid=NETWORK.grid), False)
    layer = replace(
        LAYER,
        **POINT | DEPTHWISE | {"name": "dw", "weight_shape": (12, 1, 3, 3), "groups": 12, "stride": (stride,) * 2},
    )
    size = 24 // stride
    writer.layer(layer, "x", "y", "dw", [None, 12, size, size])
    assert ("Slice" in [node.op_type for node in writer.nodes]) == (stride == 1)
    x = torch.randint(0, 9, (2, 12, 24, 24))
    found = run(writer, x.numpy().astype(np.uint8), UINT8, UINT8)
    every = expected_codes(tensors, "dw", x.float(), 0.25, 12, 1, -5, 6)[..., ::stride, ::stride]
    assert found.tolist() == (every + 128).to(torch.uint8).tolist()


def test_a_float_layer_has_code_times_step():
    writer = LayerWriter(NETWORK, compact=False)
    network_bias = NETWORK.tensors | {"fc.bias": torch.tensor([0.5, -0.5])}
    writer.network = Network(tensors=network_bias, grid=NETWORK.grid)
    writer.layer(replace(LAYER, arithmetic="float", output=None), "x", "y", "fc", [None, 2])
    assert run(writer, np.array([[6, 1]], np.float32), FLOAT, FLOAT).tolist() == [[2.0 + 0.5, 11.0 - 0.5]]
