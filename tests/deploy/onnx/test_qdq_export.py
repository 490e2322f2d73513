"""The portable form: operations of the standard alone, numbers between them, and the values of the deployed network."""

import onnx
import pytest
import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.onnx.export import to_onnx
from bayesbits.deploy.onnx.runtime import Session
from bayesbits.deploy.onnx.tensor_names import read_form
from tests.deploy.calls import deploy_uniformly
from tests.deploy.exported import Function, exported
from tests.deploy.portable import file, network


@pytest.mark.parametrize("name", ["openvino", "tensorrt", "narrow"])
def test_a_file_has_operations_of_the_standard_alone(name):
    model = file(name)
    onnx.checker.check_model(model, full_check=True)
    assert {node.domain for node in model.graph.node} == {""}
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 18)]
    assert (model.ir_version, len(model.functions), read_form(model)) == (8, 0, "qdq")


@pytest.mark.parametrize("name", ["openvino", "narrow"])
def test_only_dequantizers_read_codes(name):
    model = file(name)
    quantizers = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    assert len(quantizers) == len(network(name).small.integer.structure.grids)
    for quantizer in quantizers:
        (reader,) = (node for node in model.graph.node if quantizer.output[0] in node.input)
        assert reader.op_type == "DequantizeLinear"
        assert reader.input[1:] == quantizer.input[1:], "other constants than those that made the codes"


@pytest.mark.parametrize("count", [1, 5])
def test_a_file_computes_what_the_deployed_network_does_for_any_batch(count):
    case = network("narrow")
    x = case.inputs[:count]
    found = Session(file("narrow")).run({"x": x.numpy()})["output"]
    expected = case.small(x)
    assert (torch.from_numpy(found) - expected).abs().max() <= 1e-5 * expected.abs().max()


class Wide(nn.Module):
    """Layers that stay in float, of 16 bits, called twice and transposed, and an output that is a quantized tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 6, 2, stride=2)
        self.twice = nn.Conv2d(6, 6, 1)
        self.free, self.wide = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(self.twice(self.up(x)).relu())
        return self.wide(torch.tanh(self.free(x)))


def test_every_kind_of_layer(tmp_path):
    rules = {"free": {"skip": True}, "wide*": {"bits": 16}}
    spec = bb.Spec(bits=(2, 4, 8, 16), rules=rules, per_channel_weights=True)
    case = exported(Wide(), torch.zeros(1, 3, 8, 8), spec=spec, bits=(4, 8), drop=0.0)
    path = case.write(tmp_path / "qdq.onnx", "qdq")
    found = bb.verify(case.compressor, case.small, path, case.inputs)
    assert found.failure is None
    assert {tensor.name for tensor in found.runtime_tensors} >= {"up", "twice", "free", "wide"}
    assert max(tensor.relative_error_end_to_end for tensor in found.outputs) < 1e-2  # a code beside a tie may differ


def test_images_without_a_batch_axis(tmp_path):
    image = torch.randn(3, 8, 8)
    model = Function(lambda own, x: own.b(own.a(x).relu()), a=nn.Conv2d(3, 4, 3), b=nn.Conv2d(4, 2, 1))
    compressor, small = deploy_uniformly(model, image)
    bb.export_onnx(small, image, tmp_path / "qdq.onnx", "qdq")
    assert bb.verify(compressor, small, tmp_path / "qdq.onnx", image).failure is None


def test_activation_functions_stay_those_of_the_standard():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Conv2d(8, 8, 1), nn.Hardswish(), nn.Conv2d(8, 2, 1))
    case = exported(model, torch.zeros(2, 3, 8, 8), spec=bb.Spec(bits=(8,), output_bits=8), bits=(8,), drop=0.0)
    assert any(node.domain for node in to_onnx(case.small, case.example, "fast").graph.node)
    assert not any(node.domain for node in to_onnx(case.small, case.example, "qdq").graph.node)
