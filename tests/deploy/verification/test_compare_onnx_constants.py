"""A constant of the file that differs, is missing, or is read by another node is found."""

from pathlib import Path

import onnx
import pytest
import torch
from onnx import numpy_helper

import bayesbits as bb
from tests.deploy.exported import Exported, Small, exported


@pytest.fixture(scope="module")
def case() -> Exported:
    return exported(Small(), torch.zeros(1, 3, 8, 8), bits=(4,), drop=0.25)


@pytest.fixture(scope="module")
def file(case: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return case.write(tmp_path_factory.mktemp("file") / "network.onnx")


def change(file: Path, path: Path, name: str, move) -> Path:
    """A copy of the file in which a constant is another."""
    model = onnx.load(str(file))
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    value = numpy_helper.to_array(tensor).copy()
    value.flat[0] = move(value.flat[0])
    tensor.CopyFrom(numpy_helper.from_array(value, name))
    onnx.save(model, str(path))
    return path


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
