"""Weights as MatMulNBits reads them: bytes by hand, and products in the runtime."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import bayesbits as bb
from bayesbits.deploy.onnx.block_weights import FLOAT32, INT8, OPERATION, pack_blocks, stored_bits
from bayesbits.deploy.onnx.runtime import Session, operation_counts
from bayesbits.deploy.onnx.tensor_names import RUNTIME_DOMAIN


def test_bytes_by_hand():
    codes = np.array([[1, -1, 0, 7, -7]])
    packed = pack_blocks(codes, 4, 16)
    assert packed.shape == (1, 1, 8)
    assert packed.reshape(-1).tolist() == [0x79, 0xF8, 0x81, 0x88, 0x88, 0x88, 0x88, 0x88]  # code + 8, the first lowest
    assert pack_blocks(np.array([[1, -1, 0, 1]]), 2, 16).reshape(-1).tolist() == [0b11100111, 0xAA, 0xAA, 0xAA]
    assert pack_blocks(np.array([[127, -127]]), 8, 16).reshape(-1)[:3].tolist() == [255, 1, 128]


def test_widths_that_the_operation_lacks_take_the_next_one():
    assert [stored_bits(bits, INT8, compact=True) for bits in (0, 2, 3, 4, 5, 8, 16)] == [2, 2, 4, 4, 8, 8, None]
    assert [stored_bits(bits, INT8, compact=False) for bits in (2, 4, 8)] == [4, 4, 8]  # older releases have no 2 bits
    assert [stored_bits(bits, FLOAT32, compact=True) for bits in (2, 4, 8)] == [4, 4, None]  # others have no kernel


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("inputs", [64, 50])
def test_the_runtime_multiplies_with_code_times_step(bits, inputs):
    generator = np.random.default_rng(0)
    high = 2 ** (bits - 1) - 1
    codes = generator.integers(-high, high + 1, (5, inputs))
    steps = generator.random((5, -(-inputs // 32)), np.float32)
    node = helper.make_node(
        OPERATION, ["x", "weight", "steps"], ["y"], domain=RUNTIME_DOMAIN,
        K=inputs, N=5, bits=bits, block_size=32, accuracy_level=FLOAT32,
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(pack_blocks(codes, bits, 32), "weight"),
            numpy_helper.from_array(steps.reshape(-1), "steps"),
        ],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(RUNTIME_DOMAIN, 1)]
    found = Session(helper.make_model(graph, opset_imports=opsets, ir_version=10)).run({"x": np.eye(inputs, dtype="f")})
    np.testing.assert_array_equal(found["y"].T, codes.astype("f") * np.repeat(steps, 32, 1)[:, :inputs])


class Classifier(nn.Sequential):
    """A convolution, and linear layers with outputs of several axes, batch norm, and a tied weight."""

    def __init__(self) -> None:
        tied = nn.Linear(48, 48)
        super().__init__(
            nn.Conv1d(3, 48, 2), nn.Flatten(1, 1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), tied, nn.ReLU(),
            nn.Linear(48, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 48), nn.ReLU(), tied,
        )  # fmt: skip


@pytest.mark.parametrize(("form", "level"), [("fast", 1), ("compact", 1), ("compact", 4)])
def test_a_network_of_weights_alone_is_proven(form, level, tmp_path):
    torch.manual_seed(1)
    model, x = Classifier().eval(), torch.randn(8, 3, 9)
    with torch.no_grad():
        model[8].weight.uniform_(-2, 2)
        model[8].running_mean.normal_()
    compressor = bb.attach(model, x, bb.Spec.for_backend("onnxruntime", activations="float"))
    bits = dict(bb.Plan.uniform(compressor.topology, 4, 32, input_bits=32).bits)
    bits |= {"7.weight": 2, "10.weight": 8, "0.weight": 4}
    compressor.fix(bb.Plan(bits))
    small = bb.deploy(compressor)
    with torch.no_grad():
        torch.testing.assert_close(small(x), model(x), rtol=1e-5, atol=1e-6)
    assert small.integer.steps("7").shape == (40, 2)
    assert {layer.name: layer.group_size for layer in small.integer.layers} == {"0": None, "5": 32, "7": 32, "10": 32}
    path = tmp_path / "network.onnx"
    bb.export_onnx(small, x, path, form, accuracy_level=level)
    found = bb.verify(compressor, small, path, x)
    largest = max(tensor.relative_error for tensor in found.runtime_tensors)
    assert largest < 2e-6 if level == 1 else 1e-4 < largest < 0.05  # activations in 8 bits
    assert found.stored.weights == found.derived.weights == sum(p.numel() for n, p in model.named_parameters()
                                                               if n in bits)  # fmt: skip
    assert operation_counts(path)["MatMulNBits"] == (3 if level == 1 else 4)  # the tied layer runs twice
    assert not {"Cast", "Slice", "DequantizeLinear"} & operation_counts(path).keys()  # expanded when it is loaded
    bb.save(small, tmp_path / "stored")
    assert torch.equal(bb.load(tmp_path / "stored", Classifier())(x), small(x))


def test_other_accuracy_levels_are_refused(tmp_path):
    model, x = nn.Linear(32, 2).eval(), torch.zeros(2, 32)
    compressor = bb.attach(model, x, bb.Spec.for_backend("onnxruntime", activations="float"))
    compressor.fix()
    with pytest.raises(ValueError, match=r"accuracy_level is 2; it is one of \(1, 4\)"):
        bb.export_onnx(bb.deploy(compressor), x, tmp_path / "network.onnx", accuracy_level=2)


def test_wide_weights_in_groups(tmp_path):
    model, x = nn.Sequential(nn.Linear(40, 5), nn.ReLU(), nn.Linear(5, 2)).eval(), torch.randn(4, 40)
    spec = bb.Spec(bits=(2, 4, 8, 16, 32), activations="float", prune=False, group_size=16)
    compressor = bb.attach(model, x, spec)
    compressor.fix(bb.Plan({"0.weight": 16, "2.weight": 32, "0.input": 32, "2.input": 32}))
    small = bb.deploy(compressor)
    bb.export_onnx(small, x, tmp_path / "network.onnx")
    assert bb.verify(compressor, small, tmp_path / "network.onnx", x).failure is None
    assert small.integer.codes("0").dtype == torch.int16
