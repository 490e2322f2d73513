"""Tables, products of two activations, inputs quantized at run time, weights in groups and sizes that change, in one
network: what each of them alone may do, they do together in every form of file."""

from dataclasses import replace
from functools import cache

import onnx
import pytest
import torch

import bayesbits as bb
from bayesbits.deploy.onnx.export import to_onnx
from bayesbits.deploy.verification.compare_qdq_constants import check_qdq_constants
from tests.deploy.exported import Exported
from tests.deploy.portable import copy_of
from tests.deploy.tables import Encoder, tokens

SPECS = {
    "products": bb.Spec(bits=(4, 8), activation_products=True),
    "float": bb.Spec(bits=(4, 8), activations="float"),
    "dynamic": replace(bb.Spec.for_backend("onnxruntime", "dynamic"), activation_products=True, residual_bits="auto"),
    "groups": replace(bb.Spec.for_backend("onnxruntime", "float"), group_size=16, residual_bits="auto"),
}


@cache
def network(name: str) -> Exported:
    """The network with weights and tables of 4 bits."""
    torch.manual_seed(0)
    spec = SPECS[name]
    compressor = bb.attach(Encoder().eval(), tokens(2, 6), spec)
    compressor.calibrate([tokens(32, 6)])
    width = 32 if spec.activations == "float" else 8
    compressor.fix(bb.Plan.uniform(compressor.topology, 4, width, width))
    return Exported(compressor, bb.deploy(compressor), tokens(2, 6), tokens(8, 6))


@cache
def file(name: str, form: str) -> onnx.ModelProto:
    return to_onnx(network(name).small, tokens(2, 6), form)


def copied() -> onnx.ModelProto:
    """A portable file that a test may change."""
    return copy_of(file("products", "qdq"))


@pytest.mark.filterwarnings("ignore:.*of the MACs stay in float")
@pytest.mark.parametrize(
    ("name", "form"),
    [("products", "compact"), ("products", "qdq"), ("dynamic", "fast"), ("groups", "compact"), ("float", "qdq")],
)
def test_a_file_is_proven_equal_at_another_size(name, form, tmp_path):
    case = network(name)
    (tmp_path / "file.onnx").write_bytes(file(name, form).SerializeToString())
    found = bb.verify(case.compressor, case.small, tmp_path / "file.onnx", tokens(3, 9))
    assert {tensor.name for tensor in found.runtime_tensors if tensor.kind == "table"} == {"words", "positions"}
    products = {tensor.name for tensor in found.runtime_tensors if tensor.kind == "product"}
    assert len(products) == (2 if SPECS[name].activation_products else 0)
    assert "words" in str(case.small)
    assert str(case.compressor.cost())


@pytest.mark.filterwarnings("ignore:.*of the MACs stay in float")
@pytest.mark.parametrize("name", ["products", "dynamic", "groups"])
def test_a_stored_network_takes_other_lengths_too(name, tmp_path):
    case = network(name)
    bb.save(case.small, tmp_path / "small")
    loaded = bb.load(tmp_path / "small")
    assert torch.equal(loaded(tokens(3, 9)), case.small(tokens(3, 9)))
    assert loaded.integer.structure == case.small.integer.structure


@pytest.mark.filterwarnings("ignore:.*of the MACs stay in float")
def test_tables_are_quantized_where_activations_are_float():
    case = network("groups")
    assert {table.name: table.bits for table in case.small.integer.tables} == {"words": 4, "positions": 4}
    assert {layer.group_size for layer in case.small.integer.layers} == {16}


@pytest.mark.filterwarnings("ignore:.*of the MACs stay in float")
@pytest.mark.parametrize(("name", "reason"), [("dynamic", "at run time"), ("groups", "in groups of 16 inputs")])
def test_the_portable_form_refuses_what_it_cannot_hold(name, reason, tmp_path):
    case = network(name)
    with pytest.raises(ValueError, match=rf'form "qdq" cannot write query, which .*{reason}: export with form="fast"'):
        case.write(tmp_path / "file.onnx", "qdq")
    assert not list(tmp_path.iterdir())


def test_a_portable_file_has_operations_of_the_standard_alone():
    model = file("products", "qdq")
    onnx.checker.check_model(model, full_check=True)
    assert {node.domain for node in model.graph.node} == {""}


@pytest.mark.parametrize(
    ("constant", "message"),
    [
        ("words.weight", "words: weight differs in 1 of 320"),
        ("words.weight.step", "words: weight.step differs in 1 of"),
        ("positions.weight", "positions: weight differs in 1 of 192"),
    ],
)
def test_a_changed_table_of_a_portable_file_is_found(constant, message):
    model = copied()
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == constant)
    array = onnx.numpy_helper.to_array(tensor).copy()
    array.reshape(-1)[-1] += 1
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, constant))
    with pytest.raises(bb.VerificationError, match=message):
        check_qdq_constants(model, network("products").small.integer)


def test_a_table_that_reads_another_one_is_found():
    model = copied()
    gather = next(node for node in model.graph.node if node.op_type == "Gather" and node.input[0] == "words.weight")
    gather.input[0] = "positions.weight"
    with pytest.raises(bb.VerificationError, match=r"words: .* does not read words.weight and reads positions.weight"):
        check_qdq_constants(model, network("products").small.integer)


def test_a_product_that_is_missing_is_found():
    model = copied()
    name = network("products").small.integer.products[0].name
    next(node for node in model.graph.node if node.name == name).name = "other"
    with pytest.raises(bb.VerificationError, match=f"{name}: the ONNX file does not compute this product"):
        check_qdq_constants(model, network("products").small.integer)


def test_openvino_computes_products_and_tables(tmp_path):
    case, path = network("products"), tmp_path / "file.onnx"
    path.write_bytes(file("products", "qdq").SerializeToString())
    found = case.verify(path, "openvino")
    assert [kernel.layer for kernel in found.kernels] == [part.name for part in case.small.integer.parts]
