"""`verify` proves what agrees, says what does not, and refuses what it cannot run on."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.utils import optional_packages
from tests.deploy.exported import Exported, Small, exported


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
    compressor.fix(bb.Plan.uniform(compressor.topology, 32, 32, input_bits=8, residual_bits=None))
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


def test_wrong_arguments_are_named(case, tmp_path):
    with pytest.raises(TypeError, match="verify takes the Compressor that attach returned, and this is a Linear"):
        bb.verify(torch.nn.Linear(2, 2), case.small, "not read", case.inputs)
    with pytest.raises(TypeError, match="verify takes the network that deploy returned, and this is a Small"):
        bb.verify(case.compressor, case.compressor.model, "not read", case.inputs)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*missing\.onnx: bayesbits\.export_onnx"):
        bb.verify(case.compressor, case.small, tmp_path / "missing.onnx", case.inputs)
    for content in ("nothing of the kind", ""):
        (tmp_path / "broken.onnx").write_text(content)
        with pytest.raises(ValueError, match=r"broken\.onnx cannot be read as an ONNX file"):
            bb.verify(case.compressor, case.small, tmp_path / "broken.onnx", case.inputs)


@pytest.fixture(scope="module")
def portable(case: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return case.write(tmp_path_factory.mktemp("portable") / "qdq.onnx", "qdq")


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_a_portable_file_is_compared_in_steps(runtime, case, portable):
    found = case.verify(portable, runtime)
    assert found.machine.runtime.startswith(runtime)
    assert found.stored == found.derived
    assert all(tensor.steps is not None and tensor.steps.largest <= 1.01 for tensor in found.runtime_tensors)
    assert "rounded tensors" in str(found)
    assert "steps at most" in str(found)
    assert bb.Verification.from_json(found.to_json()) == found
    if runtime == "openvino":
        assert found.integer_layers == ("first", "second", "third", "head")


def test_another_runtime_needs_the_portable_form(case, file):
    with pytest.raises(ValueError, match=r'is written for onnxruntime: for openvino write one by .*form="qdq"'):
        case.verify(file, "openvino")


def test_an_unknown_runtime_is_refused(case, file):
    with pytest.raises(ValueError, match="runtime is 'tensorrt'; it is one of onnxruntime, openvino"):
        case.verify(file, "tensorrt")


def test_a_missing_runtime_is_named_with_its_extra(case, portable, monkeypatch):
    found = optional_packages.find_spec
    monkeypatch.setattr(optional_packages, "find_spec", lambda name: None if name == "openvino" else found(name))
    message = r'verify with runtime="openvino" needs openvino; install with: pip install "bayesbits\[openvino\]"'
    with pytest.raises(ImportError, match=message):
        case.verify(portable, "openvino")
    assert case.verify(portable).failure is None, "onnxruntime does not need it"
