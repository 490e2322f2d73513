"""Activation functions and means in graphs made by hand: the nodes that are written, and that they compute the same."""

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from bayesbits.deploy.onnx.custom_nodes import DOMAIN
from bayesbits.deploy.onnx.fast_forms import write_fast_forms
from bayesbits.deploy.onnx.runtime import Session, operation_counts

X = np.linspace(-5, 5, 2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
CONSTANTS = {"zero": 0.0, "three": 3.0, "six": 6.0, "five": 5.0}


def node(operation: str, inputs: str, output: str, **attributes: object) -> NodeProto:
    return helper.make_node(operation, inputs.split(), [output], name=f"node {output}", **attributes)


def written(*nodes: NodeProto, axes: tuple[int, ...] = (2, 3)) -> ModelProto:
    values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 4, 5])]
    inner = [helper.make_tensor_value_info("f", TensorProto.FLOAT, ["batch", 3, 4, 5])]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)]
    constants = [numpy_helper.from_array(np.float32(value), name) for name, value in CONSTANTS.items()]
    constants.append(numpy_helper.from_array(np.array(axes), "axes"))
    graph = helper.make_graph(list(nodes), "graph", values, outputs, constants, value_info=inner)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)])
    model.ir_version = 10
    write_fast_forms(model)
    return model


def kinds(model: ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def result(model: ModelProto) -> NDArray[np.float32]:
    for index, one in enumerate(model.graph.node):  # the quantizers are not replaced yet
        if one.domain == DOMAIN:
            model.graph.node[index].CopyFrom(node("Identity", one.input[0], one.output[0]))
    return Session(model).run({"x": X})["out"]


def dequantized() -> NodeProto:
    return node("Dequantize", "x", "y", domain=DOMAIN)


def test_silu_becomes_one_node() -> None:
    model = written(dequantized(), node("Sigmoid", "y", "s"), node("Mul", "s y", "out"))
    assert kinds(model) == ["Dequantize", "QuickGelu"]
    np.testing.assert_allclose(result(model), X / (1 + np.exp(-X)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "nodes",
    [
        [dequantized(), node("Sigmoid", "y", "s"), node("Mul", "s x", "out")],  # the product with another tensor
        [node("Sigmoid", "x", "s"), node("Mul", "s x", "out")],  # numbers that were no codes
        [dequantized(), node("Sigmoid", "y", "s"), node("Mul", "s y", "t"), node("Add", "s t", "out")],
    ],
)
def test_other_sigmoids_stay(nodes: list[NodeProto]) -> None:
    assert "Sigmoid" in kinds(written(*nodes))


HARD = [node("Add", "x three", "a"), node("Clip", "a zero six", "c")]


@pytest.mark.parametrize(
    ("factor", "number", "names"), [("x", X, ["HardSwish"]), ("five", np.full_like(X, 5), ["HardSigmoid", "Mul"])]
)
def test_hard_sigmoid_and_hard_swish_become_one_node(
    factor: str, number: NDArray[np.float32], names: list[str]
) -> None:
    expected = np.clip(X + 3, 0, 6) / 6
    sigmoid = written(*HARD, node("Div", "c six", "out"))
    assert kinds(sigmoid) == ["HardSigmoid"]
    np.testing.assert_allclose(result(sigmoid), expected, rtol=1e-6, atol=1e-7)
    for last in (
        [node("Mul", f"{factor} c", "m"), node("Div", "m six", "out")],
        [node("Div", "c six", "d"), node("Mul", f"d {factor}", "out")],
    ):
        model = written(*HARD, *last)
        assert kinds(model) == names
        np.testing.assert_allclose(result(model), number * expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("slope", "height", "factor", "names"),
    [
        (1 / 6, 0.5, "x", ["HardSwish"]),
        (0.2, 0.5, "x", ["HardSigmoid", "Mul"]),  # the numbers of ONNX
        (1 / 6, 0.4, "x", ["HardSigmoid", "Mul"]),
        (1 / 6, 0.5, "five", ["HardSigmoid", "Mul"]),
    ],
)
def test_the_product_with_a_hard_sigmoid_becomes_one_node(
    slope: float, height: float, factor: str, names: list[str]
) -> None:
    gate = node("HardSigmoid", "x", "g", alpha=slope, beta=height)
    model = written(gate, node("Mul", f"g {factor}", "out"))
    assert kinds(model) == names
    expected = np.clip(slope * X + height, 0, 1) * (X if factor == "x" else 5)
    np.testing.assert_allclose(result(model), expected, rtol=1e-5, atol=1e-6)


def test_both_factors_of_a_hard_swish_come_from_one_dequantization() -> None:
    nodes = [node("HardSwish", "y", "h"), node("QuantizeLinear", "h step zero_point", "out")]
    values = [helper.make_tensor_value_info(name, TensorProto.UINT8, None) for name in ("x", "out")]
    constants = [
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in {"step": np.float32(0.05), "zero_point": np.uint8(100)}.items()
    ]
    nodes.insert(0, node("DequantizeLinear", "x step zero_point", "y"))
    graph = helper.make_graph(nodes, "graph", values[:1], values[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    model.ir_version = 10
    assert operation_counts(model)["DequantizeLinear"] == 1


@pytest.mark.parametrize(
    "nodes",
    [
        [*HARD, node("Div", "c five", "out")],
        [node("Add", "x five", "a"), HARD[1], node("Div", "c six", "out")],
        [HARD[0], node("Clip", "a zero five", "c"), node("Div", "c six", "out")],
        [*HARD, node("Div", "c six", "d"), node("Add", "a d", "out")],  # something else reads x + 3
        [*HARD, node("Div", "c six", "d"), node("Add", "c d", "out")],
    ],
)
def test_other_clips_stay(nodes: list[NodeProto]) -> None:
    assert "Clip" in kinds(written(*nodes))


OTHER = node("Relu", "x", "other")
"""A second reader of the image, as in squeeze and excitation."""
SUMS = ["ReduceSum", "ReduceSum", "Div"]


@pytest.mark.parametrize("axes", [(2, 3), (-1, 1), (3, 2, 1)])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_means_become_sums_over_one_axis_each(axes: tuple[int, ...], keepdims: int) -> None:
    model = written(OTHER, node("ReduceMean", "x axes", "out", keepdims=keepdims), axes=axes)
    assert kinds(model) == ["Relu"] + ["ReduceSum"] * len(axes) + ["Div"]
    np.testing.assert_allclose(result(model), X.mean(axes, keepdims=bool(keepdims)), rtol=1e-5, atol=1e-6)


def test_global_average_pooling_is_a_mean() -> None:
    model = written(OTHER, node("GlobalAveragePool", "x", "out"))
    assert kinds(model) == ["Relu", *SUMS]
    np.testing.assert_allclose(result(model), X.mean((2, 3), keepdims=True), rtol=1e-5, atol=1e-6)


def test_means_over_one_axis_or_the_batch_stay() -> None:
    for axes in ((3,), (0, 3)):
        assert kinds(written(OTHER, node("ReduceMean", "x axes", "out"), axes=axes)) == ["Relu", "ReduceMean"]


LAYER, CODES = node("Layer", "q", "out", domain=DOMAIN), node("Quantize", "m", "q", domain=DOMAIN)


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ([node("ReduceMean", "x axes", "m"), CODES, LAYER], [*SUMS, "Quantize", "Layer"]),  # a convolution reads it
        ([node("ReduceMean", "x axes", "m", keepdims=0), CODES, LAYER], ["ReduceMean", "Quantize", "Layer"]),
        (
            [node("GlobalAveragePool", "x", "n"), node("Flatten", "n", "m"), CODES, LAYER],
            ["GlobalAveragePool", "Flatten", "Quantize", "Layer"],
        ),
        (
            [node("ToFloat", "x", "f", domain=DOMAIN), OTHER, node("ReduceMean", "f axes", "out")],
            ["ToFloat", "Relu", *SUMS],
        ),
    ],
)
def test_means_in_front_of_a_linear_layer_stay(nodes: list[NodeProto], found: list[str]) -> None:
    assert kinds(written(*nodes)) == found


@pytest.mark.parametrize(
    ("attributes", "whole"),
    [
        ({"kernel_shape": [4, 5]}, True),
        ({"kernel_shape": [9, 9], "strides": [9, 9], "ceil_mode": 1, "count_include_pad": 1}, True),
        ({"kernel_shape": [4, 4]}, False),
        ({"kernel_shape": [4, 5], "pads": [1, 0, 1, 0]}, False),
    ],
)
def test_average_pooling_of_the_whole_image_is_a_mean(attributes: dict[str, object], whole: bool) -> None:
    pool = node("AveragePool", "x", "out", **attributes)
    assert kinds(written(pool)) == (["GlobalAveragePool"] if whole else ["AveragePool"])
    model = written(OTHER, pool)
    assert kinds(model) == ["Relu", *(SUMS if whole else ["AveragePool"])]
    if whole:
        np.testing.assert_allclose(result(model), X.mean((2, 3), keepdims=True), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("shape", "row"), [((8, 28, 28), True), ((160, 28, 28), False), ((8, 7, 7), False), ((1, 28, 28), False)]
)
def test_a_number_for_each_of_few_channels_is_multiplied_by_rows(
    shape: tuple[int, int, int], row: bool, turned: bool
) -> None:
    sizes = {"x": ["batch", *shape], "g": ["batch", shape[0], 1, 1]}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in sizes.items()]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)]
    product = node("Mul", "g x" if turned else "x g", "out")
    model = helper.make_model(
        helper.make_graph([product], "graph", values, outputs), opset_imports=[helper.make_opsetid("", 21)]
    )
    model.ir_version = 10
    write_fast_forms(model)
    assert kinds(model) == (["Mul", "Mul"] if row else ["Mul"])
    generator = np.random.default_rng(0)
    x = generator.standard_normal((2, *shape), dtype=np.float32)
    gate = generator.standard_normal((2, shape[0], 1, 1), dtype=np.float32)
    np.testing.assert_array_equal(Session(model).run({"x": x, "g": gate})["out"], x * gate)
