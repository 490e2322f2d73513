"""OpenVINO: what it returns, and which layers it really computes in integers."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.onnx.export import to_onnx
from bayesbits.deploy.onnx.openvino_runtime import Session, kernels, machine
from tests.deploy.exported import exported
from tests.deploy.portable import copy_of, file, network


@pytest.mark.parametrize("name", ["openvino", "tensorrt", "narrow"])
def test_all_layers_of_a_small_cnn_run_in_integers(name):
    found = kernels(file(name), network(name).small.integer)
    assert [kernel.layer for kernel in found] == ["first", "second", "third", "rows", "head"]
    assert all(kernel.integer and kernel.reason is None for kernel in found)
    assert {kernel.operation.split()[0] for kernel in found} == {"Convolution", "FullyConnected"}
    assert {kernel.operation.split()[1] for kernel in found} <= {"u8", "i8"}


def test_a_signal_is_handled_after_sessions_are_freed(tmp_path):
    """In a process of its own, which a stack for signals that was freed would end with a segmentation fault."""
    program = """
import gc, signal, sys
import numpy as np
from bayesbits.deploy.onnx.openvino_runtime import Session
first, second = (Session(sys.argv[1]) for _ in range(2))
for session in (first, second):
    session.run({name: np.zeros((2, 3, 8, 8), np.float32) for name in session.inputs})
del session, first
gc.collect()
del second
gc.collect()
signal.signal(signal.SIGINT, lambda number, frame: print("handled"))
signal.raise_signal(signal.SIGINT)
"""
    path = tmp_path / "file.onnx"
    onnx.save(file("openvino"), path)
    ended = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "handled\n"), ended.stderr


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.twice, self.free, self.wide = (nn.Conv2d(4, 4, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(self.free(self.twice(self.twice(x).relu()).relu()).relu())


def test_layers_in_float_are_named_with_their_reason():
    spec = bb.Spec(bits=(4, 8, 16), rules={"free": {"skip": True}, "wide*": {"bits": 16}})
    case = exported(Mixed(), torch.zeros(2, 4, 8, 8), spec=spec, bits=(8,), drop=0.0)
    found = {kernel.layer: kernel for kernel in kernels(to_onnx(case.small, case.example, "qdq"), case.small.integer)}
    assert [name for name, kernel in found.items() if kernel.integer] == ["twice"]
    assert found["free"].operation == "Convolution f32"
    assert found["free"].reason == case.small.integer.layer("free").reason
    assert found["wide"].reason == "its weight has 16 bits"


def test_a_layer_that_openvino_takes_to_float_is_said_to_be():
    model = copy_of(file("openvino"))
    made = {output: node for node in model.graph.node for output in node.output}
    layer = next(node for node in model.graph.node if node.name == "second")
    quantizer = made[made[layer.input[0]].input[0]]
    assert quantizer.op_type == "QuantizeLinear"
    layer.input[0] = quantizer.input[0]
    found = {kernel.layer: kernel for kernel in kernels(model, network("openvino").small.integer)}
    assert not found["second"].integer
    assert found["second"].reason == "openvino computes it in float"


@pytest.mark.parametrize("bits", [2, 8])
def test_what_a_linear_layer_reads_stays_float_where_only_its_weight_is_quantized(tmp_path, bits):
    """Without an option OpenVINO rounds it to 8 bits, which is off by 1e-2 and not by the 1e-6 of float arithmetic."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 11)).eval(), torch.randn(64, 64)
    compressor = bb.attach(model, x[:1], bb.Spec(method="lsq", weight_bits=bits, activation_bits=32, input_bits=32))
    compressor.calibrate([x])
    compressor.fix()
    small, path = bb.deploy(compressor), tmp_path / "qdq.onnx"
    bb.export_onnx(small, x[:1], path, form="qdq")
    found, expected = torch.from_numpy(Session(path).run({"input": x.numpy()})["output"]), small(x)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert bb.verify(compressor, small, path, x, runtime="openvino").failure is None


def test_a_session_takes_shapes_as_they_come_and_names_its_outputs():
    case, session = network("openvino"), Session(file("openvino").SerializeToString(), threads=1)
    assert (session.inputs, session.outputs) == (["x"], ["output"])
    for count in (1, 3, 1):
        found = session.run({"x": case.inputs[:count].numpy()})["output"]
        assert found.shape == (count, 4)
        expected = case.small(case.inputs[:count])
        assert (torch.from_numpy(found) - expected).abs().max() <= 0.05 * expected.abs().max()


def test_results_are_copies():
    session, x = Session(file("openvino"), threads=1), network("openvino").inputs[:2].numpy()
    first = session.run({"x": x})["output"]
    kept = first.copy()
    session.run({"x": -x})
    assert np.array_equal(first, kept)


def test_a_session_reads_files(tmp_path):
    (tmp_path / "qdq.onnx").write_bytes(file("openvino").SerializeToString())
    assert Session(tmp_path / "qdq.onnx").outputs == ["output"]


def test_the_runtime_is_named_with_its_version():
    assert machine().runtime.startswith("openvino 20")
    assert "-" not in machine().runtime
