"""The codes and options of MatMulNBits in a file: read by the definition, and found where they are wrong."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import ModelProto, NodeProto, helper, numpy_helper
from torch import nn

import bayesbits as bb
from bayesbits.deploy.onnx.block_weights import OPERATION, pack_blocks
from bayesbits.deploy.verification.block_weights import activation_error, unpack_blocks
from bayesbits.deploy.verification.compare_onnx_constants import check_onnx_constants
from bayesbits.deploy.verification.compare_runtime import RuntimeComparison
from bayesbits.deploy.verification.deployed_program import run_deployed


@pytest.fixture(scope="module")
def small() -> bb.DeployedNetwork:
    torch.manual_seed(0)
    x = torch.randn(2, 40)
    compressor = bb.attach(nn.Linear(40, 6).eval(), x, bb.Spec.for_backend("onnxruntime", activations="float"))
    compressor.fix(bb.Plan({"weight": 4, ".input": 32}))
    return bb.deploy(compressor)


@pytest.fixture(scope="module")
def file(small: bb.DeployedNetwork, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("file") / "network.onnx"
    bb.export_onnx(small, torch.zeros(2, 40), path)
    return path


def node_of(model: ModelProto) -> NodeProto:
    return next(node for node in model.graph.node if node.op_type == OPERATION)


def test_the_file_holds_the_codes_of_the_plan(small, file):
    model = onnx.load(file)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    codes = unpack_blocks(small.integer.layers[0], stored[".weight"], node_of(model))
    np.testing.assert_array_equal(codes, small.integer.codes("").numpy())
    assert stored[".weight"].nbytes == 6 * 2 * 16  # half a byte for each code of two blocks of 32
    counts = check_onnx_constants(model, small.integer)
    assert (counts.weights, counts.biases) == (240, 6)


def change_code(model: ModelProto) -> None:
    tensor = next(one for one in model.graph.initializer if one.name == ".weight")
    packed = numpy_helper.to_array(tensor).copy()
    packed[3, 1, 2] ^= 1
    tensor.CopyFrom(numpy_helper.from_array(packed, tensor.name))


def change_step(model: ModelProto) -> None:
    tensor = next(one for one in model.graph.initializer if one.name == ".weight.step")
    steps = numpy_helper.to_array(tensor).copy()
    steps[5] *= 1.0001
    tensor.CopyFrom(numpy_helper.from_array(steps, tensor.name))


def fill_with_others(model: ModelProto) -> None:
    tensor = next(one for one in model.graph.initializer if one.name == ".weight")
    packed = numpy_helper.to_array(tensor).copy()
    packed[0, 1, -1] ^= 1  # beyond the 40 inputs
    tensor.CopyFrom(numpy_helper.from_array(packed, tensor.name))


def option(name: str, value: int) -> object:
    def change(model: ModelProto) -> None:
        node = node_of(model)
        kept = [attribute for attribute in node.attribute if attribute.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, value)])

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_code, "weight differs in 1 of 240 values"),
        (change_step, "weight.step differs in 1 of 12 values"),
        (fill_with_others, "last group of inputs is not filled up with zeros"),
        (option("accuracy_level", 0), "accuracy level of its MatMulNBits is 0 in the ONNX file, and not 1 or 4"),
        (option("block_size", 16), "block_size of its MatMulNBits is 16"),
        (lambda model: node_of(model).input.append(".weight"), "reads other tensors than input, codes and steps"),
    ],
)
def test_wrong_constants_are_found(small, file, change, message):
    model = onnx.load(file)
    change(model)
    with pytest.raises(bb.VerificationError, match=message):
        check_onnx_constants(model, small.integer)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_reading_is_the_inverse_of_packing(small, bits):
    high = 2 ** (bits - 1) - 1
    codes = np.random.default_rng(bits).integers(-high, high + 1, (6, 40))
    node = helper.make_node(OPERATION, ["x", "w", "s"], ["y"], K=40, N=6, block_size=32, accuracy_level=1, bits=bits)
    np.testing.assert_array_equal(unpack_blocks(small.integer.layers[0], pack_blocks(codes, bits, 32), node), codes)


def test_the_error_of_rounded_activations_by_hand(small):
    layer = small.integer.layers[0]
    codes, steps = torch.zeros(6, 40), torch.ones(6, 2)
    codes[0, 0], codes[0, 1], codes[0, 39], codes[1, 35] = 2.0, -3.0, 4.0, 1.0
    steps[0, 1] = 10.0
    x = torch.zeros(1, 40)
    x[0, 5], x[0, 33] = -2.54, 5.08
    found = activation_error(layer, codes, steps, x) / 1.01
    assert found[0].tolist() == pytest.approx([0.01 * 5 + 0.02 * 40, 0.02 * 1, 0, 0, 0, 0])


def test_a_product_that_is_off_by_more_is_found(small, file, tmp_path):
    """At level 4 the rounding of activations is allowed for, and a wrong step is still found."""
    x = torch.randn(2, 40)
    model = onnx.load(file)
    option("accuracy_level", 4)(model)
    onnx.save(model, tmp_path / "rounded.onnx")
    comparison = RuntimeComparison(small, model)
    values, outputs = run_deployed(small, [x], comparison.nodes)
    comparison.compare([x], 2, values, outputs)
    tensor = next(one for one in model.graph.initializer if one.name == ".bias")
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + np.float32(0.2), tensor.name))
    comparison = RuntimeComparison(small, model)
    with pytest.raises(bb.VerificationError, match="numbers of the layer are off by"):
        comparison.compare([x], 2, values, outputs)
