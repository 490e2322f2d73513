"""Products of two activations as ONNX nodes: integer kernels, proven equal; a mistake in the file is found."""

import onnx
import pytest
import torch
from onnx import numpy_helper

import bayesbits as bb
from tests.graph.attention import KINDS, attention, examples


def exported(path, kind="sdpa", bits=8, changes=None):
    inputs = examples()
    compressor = bb.attach(attention(kind), inputs[:1], bb.Spec(activation_products=True))
    compressor.calibrate([inputs])
    plan = bb.Plan.uniform(compressor.topology, bits, bits)
    compressor.fix(bb.Plan({**plan.bits, **(changes or {})}))
    small = bb.deploy(compressor)
    bb.export_onnx(small, inputs, path)
    return compressor, small


@pytest.mark.parametrize("kind", KINDS)
def test_every_form_is_verified_and_runs_in_integers(tmp_path, kind):
    path = tmp_path / "small.onnx"
    compressor, small = exported(path, kind, 4 if kind == "sdpa" else 8)
    found = bb.verify(compressor, small, path, examples(5))
    kernels = {kernel.layer: kernel for kernel in found.kernels}
    first, second = (product.name for product in small.integer.products)
    assert (kernels[first].integer, kernels[second].operation) == (True, "QLinearMatMul")
    products = [tensor for tensor in found.runtime_tensors if tensor.kind == "product"]
    assert [(tensor.exact, tensor.differing) for tensor in products] == [(True, 0), (True, 0)]
    operands = {product.left for product in small.integer.products} | {p.right for p in small.integer.products}
    assert operands <= {tensor.name for tensor in found.simulated.tensors}


def test_a_product_in_float_is_verified_too(tmp_path):
    path = tmp_path / "small.onnx"
    compressor, small = exported(path, changes={"sdpa.value": 16, "sdpa.key": 32})
    found = bb.verify(compressor, small, path, examples(5))
    reasons = {kernel.layer: kernel.reason for kernel in found.kernels if not kernel.integer}
    assert reasons == {
        "sdpa.scores": "its second operand has 32 bits",
        "sdpa.context": "its second operand has 16 bits",
    }


def change_constant(path, name, change):
    model = onnx.load(path)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), name))
    onnx.save(model, path)


@pytest.mark.parametrize("name", ["sdpa.query.step", "sdpa.context.codes.high", "sdpa.value.zero_point"])
def test_a_changed_constant_of_the_file_is_found(tmp_path, name):
    path = tmp_path / "small.onnx"
    compressor, small = exported(path, bits=4)
    change_constant(path, name, lambda value: (value * 2).astype(value.dtype))
    with pytest.raises(bb.VerificationError, match=name.rpartition(".")[0].removesuffix(".codes")):
        bb.verify(compressor, small, path, examples())


def test_a_changed_step_of_the_deployed_product_is_found(tmp_path):
    path = tmp_path / "small.onnx"
    compressor, small = exported(path)
    module = next(module for name, module in small.program.named_modules() if name.endswith("scores"))
    module.scale.mul_(1.001)
    with pytest.raises(bb.VerificationError, match=r"sdpa\.scores: .*scale"):
        bb.verify(compressor, small, path, examples())


def test_operands_that_were_trained_otherwise_are_found(tmp_path):
    path = tmp_path / "small.onnx"
    compressor, small = exported(path)
    with torch.no_grad():
        compressor.attachment.quantizers["sdpa.key"].log_beta.add_(0.1)
    with pytest.raises(bb.VerificationError, match=r"sdpa\.key"):
        bb.verify(compressor, small, path, examples())
