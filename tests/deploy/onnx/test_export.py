"""ONNX files: two forms of one network, any batch, and clear errors."""

import importlib.util

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.onnx import node_writer
from bayesbits.deploy.onnx.export import export_float_onnx
from bayesbits.utils import optional_packages
from tests.deploy.calls import deploy_uniformly, rows
from tests.deploy.exported import exported


class Mixture(nn.Module):
    """What has a way of its own into a file: called twice, transposed, padded by itself, of 16 bits, left in float."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding="same", padding_mode="reflect")
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.twice = nn.Linear(8, 8)
        self.free = nn.Linear(8, 8)
        self.wide = nn.Linear(8, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.silu(self.up(self.first(x).relu())).flatten(2).mT
        x = self.twice(self.twice(x).relu()).relu()
        return self.head(torch.tanh(self.wide(self.free(x))).amax(1))


@pytest.fixture(scope="module")
def mixture():
    rules = {"free": {"skip": True}, "wide*": {"bits": 16}}
    return exported(Mixture(), torch.zeros(1, 3, 8, 8), spec=bb.Spec(bits=(2, 4, 8, 16), rules=rules), drop=0.0)


@pytest.fixture(scope="module")
def files(mixture, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    return {form: mixture.write(folder / f"{form}.onnx", form) for form in ("fast", "compact")}


@pytest.mark.parametrize("form", ["fast", "compact"])
def test_every_kind_of_layer_is_equal(form, mixture, files):
    found = mixture.verify(files[form])
    kernels = {kernel.layer: kernel for kernel in found.kernels}
    assert {name for name, kernel in kernels.items() if kernel.integer} >= {"first", "twice", "head"}
    assert "no integer kernel for transposed" in kernels["up"].reason
    assert kernels["free"].reason is not None
    assert next(tensor for tensor in found.runtime_tensors if tensor.name == "up").exact


def test_batches_of_any_size(mixture, files):
    session = onnxruntime.InferenceSession(str(files["fast"]), providers=["CPUExecutionProvider"])
    for count in (1, 3):
        x = torch.linspace(-3, 3, count * 3 * 64).reshape(count, 3, 8, 8)
        output = session.run(None, {"x": x.numpy()})[0]
        assert np.abs(output - mixture.small(x).numpy()).max() < 1e-4


def test_the_compact_form_packs_narrow_weights(mixture, files):
    stored = {tensor.name: tensor for tensor in onnx.load(str(files["compact"])).graph.initializer}
    for layer in mixture.small.integer.layers:
        if layer.bits <= 8:
            narrow = TensorProto.INT2 if layer.bits == 2 else TensorProto.INT4 if layer.bits == 4 else TensorProto.INT8
            assert stored[f"{layer.name}.weight"].data_type == narrow
            assert len(stored[f"{layer.name}.weight"].raw_data) == -(-np.prod(layer.weight_shape) * layer.bits // 8)


def test_nothing_of_our_own_is_left_in_the_file(files):
    model = onnx.load(str(files["fast"]))
    assert {node.op_type for node in model.graph.node if node.domain} == {"MatMulIntegerToFloat"}
    assert [opset.domain for opset in model.opset_import] == ["", "com.microsoft"]
    onnx.checker.check_model(model)


def test_files_show_no_paths_of_the_machine_that_wrote_them(files, tmp_path):
    path = tmp_path / "float.onnx"
    export_float_onnx(nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Softplus()).eval(), torch.zeros(2, 4), path)
    for content in (path.read_bytes(), files["fast"].read_bytes(), files["compact"].read_bytes()):
        assert b".py" not in content


def test_a_wrong_form_is_refused(mixture, tmp_path):
    with pytest.raises(ValueError, match="form is 'small'; it is one of fast, compact, qdq"):
        mixture.write(tmp_path / "network.onnx", "small")


def test_another_module_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"takes what bayesbits\.deploy returns, and this is a Linear"):
        bb.export_onnx(nn.Linear(2, 2), torch.zeros(1, 2), tmp_path / "network.onnx")


def test_missing_packages_are_named(monkeypatch, mixture, tmp_path):
    found = importlib.util.find_spec
    monkeypatch.setattr(optional_packages, "find_spec", lambda name: None if name == "onnxscript" else found(name))
    message = r'export_onnx needs onnxscript; install with: pip install "bayesbits\[onnx\]"'
    with pytest.raises(ImportError, match=message):
        mixture.write(tmp_path / "network.onnx")


def test_a_file_that_does_not_load_is_not_written(tmp_path, monkeypatch):
    _, small = deploy_uniformly(nn.Sequential(nn.Linear(4, 2)), rows())
    bb.export_onnx(small, rows(), tmp_path / "small.onnx")
    before = (tmp_path / "small.onnx").read_bytes()
    monkeypatch.setattr(node_writer, "auxiliary_node", lambda name: "the same")
    with pytest.raises(RuntimeError, match=r"onnxruntime cannot load what was exported.*the same"):
        bb.export_onnx(small, rows(), tmp_path / "small.onnx")
    assert (tmp_path / "small.onnx").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
