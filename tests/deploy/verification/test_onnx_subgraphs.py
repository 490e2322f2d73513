"""Subgraphs of a graph made by hand: their ends, what is exact, and what they compute by themselves."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper

from bayesbits.deploy.onnx.runtime import Session
from bayesbits.deploy.onnx.tensor_names import MappedTensor
from bayesbits.deploy.verification.onnx_subgraphs import SubgraphExtractor, exporter_constants

LAYERS = (SimpleNamespace(name="fc", arithmetic="integer"), SimpleNamespace(name="free", arithmetic="float"))
SMALL = SimpleNamespace(
    integer=SimpleNamespace(
        layers=LAYERS,
        parts=LAYERS,
        structure=SimpleNamespace(grids=(SimpleNamespace(name="q"), SimpleNamespace(name="r"))),
    ),
    program=SimpleNamespace(parameters=lambda: [torch.tensor([[1.0, 2.0], [3.0, 4.0]])], buffers=list),
)
RANKS = {"q.quantized": 2, "product": 2}
CONSTANTS = {
    "q.step": np.float32(0.5),
    "q.zero_point": np.uint8(0),
    "held": np.array([[1, 3], [2, 4]], np.float32),  # transposed by the exporter
    "cosines": np.array([0.5, 0.25], np.float32),
}
NODES = [
    ("QuantizeLinear", ["x", "q.step", "q.zero_point"], "q.quantized", "node/q"),
    ("DequantizeLinear", ["q.quantized", "q.step", "q.zero_point"], "numbers", "node/d"),
    ("MatMul", ["numbers", "held"], "product", "fc@2"),
    ("Softmax", ["product"], "softmax", "node/s"),
    ("QuantizeLinear", ["softmax", "q.step", "q.zero_point"], "r.quantized", "node/r"),
    ("Mul", ["numbers", "cosines"], "turned", "node/m"),
]
TENSORS = (
    MappedTensor("n0", "Quantize", "q", "q.quantized", 0),
    MappedTensor("n1", "Layer", "fc", "product", None),
    MappedTensor("n2", "Quantize", "r", "r.quantized", 0),
)


@pytest.fixture
def model() -> ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "turned")]
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, [output], name=name) for kind, inputs, output, name in NODES],
        "graph", values[:1], values[1:],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in CONSTANTS.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    made.ir_version = 10
    return made


def test_every_mapped_tensor_and_output_has_the_nodes_behind_the_tensors_in_front(model: ModelProto) -> None:
    found = {subgraph.value: subgraph for subgraph in SubgraphExtractor(model, TENSORS, SMALL).subgraphs}
    assert [(one.name, one.kind, one.inputs) for one in found.values()] == [
        ("q", "quantizer", ("x",)),
        ("fc", "layer", ("q.quantized",)),
        ("r", "quantizer", ("product",)),
        ("turned", "output", ("q.quantized",)),
    ]
    assert [node.op_type for node in found["product"].nodes] == ["DequantizeLinear", "MatMul"]
    assert [one.exact for one in found.values()] == [True, True, False, False]
    assert [one.unquantized for one in found.values()] == ["x", None, "softmax", None]
    assert found["turned"].mapped is None
    assert set(found["product"].code_inputs) == {"q.quantized"}
    assert set(found["r.quantized"].code_inputs) == set()


def test_a_float_layer_and_an_average_of_numbers_are_not_exact(model: ModelProto) -> None:
    model.graph.node[2].name = "free"
    model.graph.node[3].op_type = "ReduceSum"
    found = {subgraph.value: subgraph for subgraph in SubgraphExtractor(model, TENSORS, SMALL).subgraphs}
    assert not found["product"].exact
    assert not found["r.quantized"].exact
    assert found["r.quantized"].sums_over_positions
    assert not found["product"].sums_over_positions
    model.graph.node[1].op_type, model.graph.node[2].name = "ReduceMean", "fc"
    found = {subgraph.value: subgraph for subgraph in SubgraphExtractor(model, TENSORS, SMALL).subgraphs}
    assert found["product"].exact, "an average of codes"


def test_a_subgraph_runs_by_itself(model: ModelProto) -> None:
    extractor = SubgraphExtractor(model, TENSORS, SMALL)
    _, layer, quantizer, _ = extractor.subgraphs
    codes = np.array([[2, 4]], np.uint8)
    assert Session(extractor.to_model(layer, RANKS)).run({"q.quantized": codes})["product"].tolist() == [[5.0, 11.0]]
    results = Session(extractor.to_model(quantizer, RANKS)).run({"product": np.array([[0.0, 0.0]], np.float32)})
    assert results["softmax"].tolist() == [[0.5, 0.5]]
    assert results["r.quantized"].tolist() == [[1, 1]]


def test_the_whole_model_returns_inner_tensors_as_well(model: ModelProto) -> None:
    session = Session(SubgraphExtractor(model, TENSORS, SMALL).with_inner_outputs())
    assert session.outputs == ["turned", "q.quantized", "product", "r.quantized"]
    assert session.run({"x": np.array([[1.0, 2.0]], np.float32)})["product"].tolist() == [[5.0, 11.0]]
    assert [value.name for value in model.graph.output] == ["turned"], "the model itself is not changed"


def test_constants_of_the_exporter_are_those_that_the_network_does_not_hold(model: ModelProto) -> None:
    assert exporter_constants(model, SMALL) == {"cosines"}


def test_a_constant_of_the_size_of_a_parameter_may_still_be_the_exporters(model: ModelProto) -> None:
    for name, values in (("other", [1, 2, 3, 5]), ("q.owned", [1, 2, 3, 6]), ("one", [7])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(values, np.float32), name))
    assert exporter_constants(model, SMALL) == {"cosines", "other"}


def test_inputs_of_the_network_keep_their_dimensions_and_others_their_number(model: ModelProto) -> None:
    """Without them the runtime cannot tell how many sizes a Resize reads that are computed from an input's."""
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2]))
    extractor = SubgraphExtractor(model, TENSORS, SMALL)
    quantizer, layer, _, _ = (extractor.to_model(subgraph, RANKS).graph.input[0] for subgraph in extractor.subgraphs)
    assert [dim.dim_param or dim.dim_value for dim in quantizer.type.tensor_type.shape.dim] == ["batch", 2]
    assert [dim.dim_param or dim.dim_value for dim in layer.type.tensor_type.shape.dim] == [0, 0]
