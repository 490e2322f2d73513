"""`verify` catches what is wrong, and says where."""

from pathlib import Path

import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import bayesbits as bb
from tests.deploy.exported import Exported, exported


class Small(nn.Module):
    """A convolution that emits codes for another, an addition, a pool and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.third = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(nn.functional.relu6(self.first(x)))
        x = nn.functional.max_pool2d(x + self.third(x), 2)
        return self.head(x.mean((2, 3)))


@pytest.fixture(scope="module")
def case() -> Exported:
    return exported(Small(), torch.zeros(1, 3, 8, 8), bits=(4,), drop=0.25)


@pytest.fixture(scope="module")
def file(case: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return case.write(tmp_path_factory.mktemp("file") / "network.onnx")


@pytest.mark.parametrize("form", ["fast", "compact"])
@pytest.mark.parametrize("bits", [2, 4])
def test_an_input_whose_width_was_learned(bits: int, form: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    inputs = torch.rand(64, 3, 8, 8)  # from 0 on: an unsigned grid
    compressor = bb.attach(Small().eval(), inputs, bb.Spec(bits=(2, 4, 8), input_bits="learned", prune=False))
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan.uniform(compressor.topology, 4, 4, input_bits=bits, residual_bits=8))
    small = bb.deploy(compressor)
    bb.export_onnx(small, inputs[:1], tmp_path / "network.onnx", form=form)
    proof = bb.verify(compressor, small, tmp_path / "network.onnx", inputs)
    assert "first" in proof.integer_layers


def change(file: Path, path: Path, name: str, move) -> Path:
    """A copy of the file in which a constant is another."""
    model = onnx.load(str(file))
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    value = numpy_helper.to_array(tensor).copy()
    value.flat[0] = move(value.flat[0])
    tensor.CopyFrom(numpy_helper.from_array(value, name))
    onnx.save(model, str(path))
    return path


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
    assert bb.verify(compressor, small, tmp_path / "network.onnx", inputs).integer_layers == ("0", "3")


def test_another_compressor_is_not_taken_for_the_one_that_was_deployed(case, file):
    torch.manual_seed(3)
    other = exported(Small(), torch.zeros(1, 3, 8, 8), bits=(4,), drop=0.25)
    with torch.no_grad():
        for parameter in other.compressor.model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    with pytest.raises(bb.VerificationError, match="is this the compressor that was deployed"):
        bb.verify(other.compressor, case.small, file, torch.randn(64, 3, 8, 8))


def test_a_float_residual_network_is_not_accused_of_rounding_otherwise(tmp_path):
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.Conv2d(a, 8, 3, padding=1, bias=False) for a in (3, 8))
            self.norm, self.other = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
            self.head = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(self.first(x)).relu()
            x = (x + self.other(self.second(x))).relu()
            return self.head(x.mean((2, 3)))

    torch.manual_seed(0)
    inputs = torch.randn(64, 3, 8, 8)
    compressor = bb.attach(Residual().eval(), inputs[:1], bb.Spec.paper())
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan.uniform(compressor.topology, 32, 32, input_bits=8))
    small = bb.deploy(compressor)
    bb.export_onnx(small, inputs[:1], tmp_path / "network.onnx")
    assert bb.verify(compressor, small, tmp_path / "network.onnx", inputs).integer_layers == ()


def test_everything_agrees(case, file):
    found = case.verify(file)
    assert found.integer_layers == ("first", "second", "third", "head")
    assert found.simulated.inputs == 64
    codes = [case.small.integer.codes(layer.name).numel() for layer in case.small.integer.layers]
    assert found.stored.weights == found.derived.weights == sum(codes)
    assert "4 of 4 layers" in str(found)
    assert "onnxruntime" in found.machine.runtime
    assert bb.Verification.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("constant", "move", "layer"),
    [
        ("second.weight", lambda code: -code if code else 1, "second"),
        ("first.bias", lambda bias: bias + 1, "first"),
        ("head.scale", lambda step: step * (1 + 1e-6), "head"),
        ("second.input.step", lambda step: step * (1 + 1e-6), "second.input"),
        ("first.codes.high", lambda code: code - 1, "first"),
    ],
)
def test_a_changed_constant_is_found(constant, move, layer, case, file, tmp_path):
    with pytest.raises(bb.VerificationError, match=f"^{layer}: "):
        case.verify(change(file, tmp_path / "changed.onnx", constant, move))


def test_a_missing_clip_is_found(case, file, tmp_path):
    model = onnx.load(str(file))
    clip = next(node for node in model.graph.node if node.op_type == "Clip" and node.output[0] == "first.codes")
    before = clip.input[0]
    for node in model.graph.node:
        node.output[:] = [clip.output[0] if name == before else name for name in node.output]
    model.graph.node.remove(clip)
    onnx.save(model, str(tmp_path / "changed.onnx"))
    with pytest.raises(bb.VerificationError, match=r"^first: the ONNX file does not read first\.codes\.high, first\."):
        bb.verify(case.compressor, case.small, tmp_path / "changed.onnx", 0.01 * case.inputs)  # nothing saturates


@pytest.mark.parametrize(
    ("name", "owner"), [("first.codes.high", "first"), ("second.weight", "second"), ("first.input.zero_point", "first")]
)
def test_a_constant_of_another_name_is_found(name, owner, case, file, tmp_path):
    model = onnx.load(str(file))
    held = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    model.graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(held), "elsewhere"))
    for node in model.graph.node:
        node.input[:] = ["elsewhere" if one == name else one for one in node.input]
    onnx.save(model, str(tmp_path / "changed.onnx"))
    message = rf"^{owner}.*: the ONNX file does not read {name} and reads elsewhere"
    with pytest.raises(bb.VerificationError, match=message):
        case.verify(tmp_path / "changed.onnx")


def test_a_wrong_scale_under_another_name_is_found_at_its_layer(case, file, tmp_path):
    """Constants are all as they should be, but one node reads another: only running tells."""
    model = onnx.load(str(file))
    step = next(tensor for tensor in model.graph.initializer if tensor.name == "second.weight.step")
    model.graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(step) * 1.05, "elsewhere"))
    node = next(node for node in model.graph.node if "second.weight.step" in node.input)
    node.input[1] = "elsewhere"
    onnx.save(model, str(tmp_path / "changed.onnx"))
    with pytest.raises(bb.VerificationError, match=r"^second: "):
        case.verify(tmp_path / "changed.onnx")


def test_a_file_of_another_network_is_refused(case, tmp_path):
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "other", [value], [])
    onnx.save(onnx.helper.make_model(graph), str(tmp_path / "other.onnx"))
    with pytest.raises(bb.VerificationError, match=r"first: the ONNX file has no constant first\.weight"):
        case.verify(tmp_path / "other.onnx")
