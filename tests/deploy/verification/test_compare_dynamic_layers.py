"""Layers that quantize their input at run time: whole networks are proven, and every wrong integer is found."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import ModelProto, numpy_helper
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.modules import LAYERS, target_of
from bayesbits.deploy.verification.compare_dynamic_layers import DynamicLayerComparison
from bayesbits.deploy.verification.deployed_program import run_deployed
from tests.graph.networks import randomize


class Mixed(nn.Module):
    """A static convolution, two linear layers that read one tensor, hidden channels, and a layer without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 6, 2, stride=2), nn.LayerNorm(6)
        self.query, self.key = nn.Linear(6, 6), nn.Linear(6, 6)
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 6)
        self.head = nn.Linear(6, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x).flatten(2).transpose(1, 2))
        x = x + torch.softmax(self.query(x) @ self.key(x).transpose(1, 2), -1) @ x
        return self.head((x + self.down(nn.functional.gelu(self.up(x)))).mean(1))


X = torch.randn(4, 3, 4, 4, generator=torch.Generator().manual_seed(0))
SPEC = bb.Spec.for_backend("onnxruntime", activations="dynamic")


@pytest.fixture(scope="module")
def compressor() -> bb.Compressor:
    made = bb.attach(randomize(Mixed(), 0).eval(), X, SPEC)
    made.calibrate([X])
    bits = dict(bb.Plan.uniform(made.topology, 8, 8).bits) | {"query.weight": 4, "up.weight": 2, "head.weight": 32}
    made.fix(bb.Plan(bits, {"up": (0, 1, 2, 4, 5, 6, 8, 9)}))
    return made


@pytest.fixture(scope="module")
def small(compressor: bb.Compressor) -> bb.DeployedNetwork:
    return bb.deploy(compressor)


@pytest.fixture(scope="module")
def file(small: bb.DeployedNetwork, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("file") / "network.onnx"
    bb.export_onnx(small, X, path)
    return path


@pytest.mark.parametrize("form", ["fast", "compact"])
def test_the_file_is_proven_and_runs_in_integers(compressor, small, tmp_path, form):
    bb.export_onnx(small, X, tmp_path / "network.onnx", form)
    found = bb.verify(compressor, small, tmp_path / "network.onnx", torch.randn(8, 3, 4, 4))
    kernels = {kernel.layer: kernel.operation for kernel in found.kernels}
    assert kernels["query"] == kernels["key"] == "MatMulIntegerToFloat"  # one quantizer for both
    assert kernels["up"] == kernels["down"] == "DynamicQuantizeMatMul"
    assert [kernel.layer for kernel in found.kernels if not kernel.integer] == ["head"]
    integers = {tensor.name: tensor for tensor in found.runtime_tensors if tensor.kind == "integers"}
    assert set(integers) == {"query", "key", "up", "down"}
    assert all(tensor.exact and tensor.values and not tensor.differing for tensor in integers.values())
    inputs = [tensor.name for tensor in found.runtime_tensors if tensor.kind == "input"]
    assert inputs == ["query.input", "up.input", "down.input", "head.input"]  # that of key is the one of query
    assert found.simulated.wrong == 0
    assert {tensor.name for tensor in found.simulated.tensors} >= {"query.input", "up.input", "down.input"}


def test_the_deployed_network_is_the_trained_one(compressor, small, tmp_path):
    with torch.no_grad():
        torch.testing.assert_close(small(X), compressor.model(X), rtol=1e-5, atol=1e-6)
    reads = {layer.name: (layer.arithmetic, layer.dynamic, layer.input) for layer in small.integer.layers}
    assert reads["stem"] == ("integer", False, "stem.input")
    assert reads["up"] == ("integer", True, None)
    assert reads["head"] == ("float", True, None)
    assert small.integer.layer("up").weight_shape == (8, 6)
    assert "dynamic8" in str(small)
    bb.save(small, tmp_path)
    assert torch.equal(bb.load(tmp_path, Mixed())(X), small(X))


def change_weight(model: ModelProto) -> None:
    tensor = next(one for one in model.graph.initializer if one.name == "down.weight")
    codes = numpy_helper.to_array(tensor).copy()
    codes[0, 0] += np.int8(1) if codes[0, 0] < 100 else np.int8(-1)
    tensor.CopyFrom(numpy_helper.from_array(codes, tensor.name))


def drop_zero_point(model: ModelProto) -> None:
    node = next(one for one in model.graph.node if one.op_type == "MatMulInteger" and one.name == "down")
    del node.input[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_weight, "down: integer sum differs in .* in onnxruntime, fed the same values"),
        (drop_zero_point, "down: integer sum differs"),
    ],
)
def test_wrong_integers_of_the_file_are_found(small, file, change, message):
    model = onnx.load(file)
    change(model)
    comparison = DynamicLayerComparison(small, model)
    values, _ = run_deployed(small, [X], comparison.nodes)
    with pytest.raises(bb.VerificationError, match=message):
        comparison.compare(values)


@pytest.mark.parametrize(
    ("part", "message"),
    [(0, "up: code of the input differs"), (1, "up: step of the input differs"), (2, "up: zero point differs")],
)
def test_a_layer_that_quantizes_otherwise_is_found(compressor, file, part, message):
    small = bb.deploy(compressor)
    module = small.program.get_submodule(target_of(LAYERS, "up"))
    right = module.quantized

    def wrong(x: Tensor) -> tuple[Tensor, ...]:
        found = list(right(x))
        found[part] = found[part] + (1 if part != 1 else 1e-6)
        return tuple(found)

    module.quantized = wrong
    comparison = DynamicLayerComparison(small, onnx.load(file))
    values, _ = run_deployed(small, [X], comparison.nodes)
    with pytest.raises(bb.VerificationError, match=message):
        comparison.compare(values)


def test_a_layer_that_quantizes_another_tensor_is_found(compressor, small, file, tmp_path):
    model = onnx.load(file)
    first = next(node for node in model.graph.node if node.op_type == "DynamicQuantizeLinear")
    product = next(node for node in model.graph.node if node.op_type == "MatMulInteger" and node.name == "up")
    assert product.input[0] != first.output[0]
    product.input[0], product.input[2] = first.output[0], first.output[2]
    onnx.save(model, tmp_path / "changed.onnx")
    with pytest.raises(bb.VerificationError, match="up: numbers of the layer are off by"):
        bb.verify(compressor, small, tmp_path / "changed.onnx", X)


def test_a_bias_that_was_not_trained_is_found(compressor, file):
    small = bb.deploy(compressor)
    with torch.no_grad():
        small.program.get_submodule(target_of(LAYERS, "query")).bias.add_(0.5)
    with pytest.raises(bb.VerificationError, match="query: bias differs"):
        bb.verify(compressor, small, file, X)


def test_a_file_that_does_not_quantize_at_run_time_is_found(small, file):
    model = onnx.load(file)
    for node in model.graph.node:
        if node.op_type == "MatMulInteger":
            node.name = "another"
    with pytest.raises(bb.VerificationError, match="does not quantize its input at run time"):
        DynamicLayerComparison(small, model)
