"""Constants of a portable file: every change of one is found, and every one that is not read."""

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, numpy_helper

import bayesbits as bb
from bayesbits.deploy.verification.compare_qdq_constants import check_qdq_constants
from tests.deploy.portable import copy_of, file, network


def check(model: ModelProto, name: str = "narrow"):
    return check_qdq_constants(model, network(name).small.integer)


@pytest.mark.parametrize("name", ["openvino", "tensorrt", "narrow"])
def test_all_constants_of_a_right_file_are_equal(name):
    counts, integer = check(file(name), name), network(name).small.integer
    assert counts.weights == sum(integer.codes(layer.name).numel() for layer in integer.layers)
    assert counts.biases == sum(integer.bias(layer.name).numel() for layer in integer.layers if layer.bias)
    assert counts.grids == len(integer.structure.grids)


OWNED = [
    tensor.name for tensor in file("narrow").graph.initializer if not tensor.name.startswith(("val", "first axis"))
]


@pytest.mark.parametrize("constant", OWNED)
def test_every_change_of_a_constant_is_found(constant):
    model = copy_of(file("narrow"))
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == constant)
    array = numpy_helper.to_array(tensor).copy()
    flat = array.reshape(-1)
    flat[-1] = flat[-1] + 1 if array.dtype != np.float32 else np.nextafter(flat[-1], np.float32(np.inf))
    tensor.CopyFrom(numpy_helper.from_array(array, constant))
    with pytest.raises(bb.VerificationError, match=r"differs in 1 of"):
        check(model)


def node_of(model: ModelProto, kind: str) -> NodeProto:
    return next(node for node in model.graph.node if node.op_type == kind)


def test_a_missing_bound_is_found():
    model = copy_of(file("narrow"))
    clip = node_of(model, "Clip")
    reader = next(node for node in model.graph.node if clip.output[0] in node.input)
    reader.input[0] = clip.input[0]
    with pytest.raises(bb.VerificationError, match=r"does not read .*\.high, .*\.low at"):
        check(model)


def test_the_constants_of_another_layer_are_found():
    model = copy_of(file("narrow"))
    node = next(node for node in model.graph.node if node.name == "second")
    node.input[2] = "first.bias"
    with pytest.raises(bb.VerificationError, match=r"second: the ONNX file does not read second.bias and reads first"):
        check(model)


def test_a_tensor_that_is_not_quantized_is_found():
    model = copy_of(file("narrow"))
    node = node_of(model, "DequantizeLinear")
    node.op_type = "Identity"
    with pytest.raises(bb.VerificationError, match=r"does not quantize .*: no DequantizeLinear"):
        check(model)


def test_a_layer_that_is_missing_is_found():
    model = copy_of(file("narrow"))
    next(node for node in model.graph.node if node.name == "head").name = "tail"
    with pytest.raises(bb.VerificationError, match="head: the ONNX file does not compute this layer at output"):
        check(model)
