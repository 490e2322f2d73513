"""A constant of squeeze and excitation that is not the one of the codes which are read is found."""

from functools import partial
from typing import Any

import onnx
import pytest

import bayesbits as bb
from bayesbits.deploy.verification.code_operations import MEAN, PRODUCT
from tests.deploy.onnx.test_squeeze_excitation_nodes import trained


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    compressor, inputs = trained("joined", "clip")
    path = tmp_path_factory.mktemp("written") / "network.onnx"
    small = bb.deploy(compressor)
    bb.export_onnx(small, inputs[:1], path)
    return partial(bb.verify, compressor, small), inputs, onnx.load(path)


@pytest.mark.parametrize(
    ("kind", "position", "name", "owner"),
    [
        (MEAN, 1, "stem.input.step", "squeeze.input"),
        (MEAN, 2, "stem.input.zero_point", "squeeze.input"),
        (MEAN, 3, "last.input.step", "squeeze.input"),
        (MEAN, 4, "stem.input.zero_point", "squeeze.input"),
        (PRODUCT, 1, "squeeze.input.step", "last.input"),
        (PRODUCT, 2, "stem.input.zero_point", "last.input"),
        (PRODUCT, 4, "squeeze.input.step", "last.input"),
        (PRODUCT, 5, "stem.input.zero_point", "last.input"),
        (PRODUCT, 6, "squeeze.input.step", "last.input"),
    ],
)
def test_another_constant_is_found(
    written: Any, kind: str, position: int, name: str, owner: str, tmp_path: Any
) -> None:
    verify, inputs, model = written
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    node = next(node for node in changed.graph.node if node.op_type == kind)
    assert node.input[position] != name in {tensor.name for tensor in changed.graph.initializer}
    node.input[position] = name
    onnx.save(changed, tmp_path / "changed.onnx")
    with pytest.raises(bb.VerificationError, match=f"^{owner}: the ONNX file"):
        verify(tmp_path / "changed.onnx", inputs)


@pytest.mark.parametrize(("kind", "position", "owner"), [(MEAN, 1, "squeeze.input"), (PRODUCT, 4, "last.input")])
def test_another_grid_is_found(written: Any, kind: str, position: int, owner: str, tmp_path: Any) -> None:
    """Step and zero point of one grid, but not of the one whose codes are read."""
    verify, inputs, model = written
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    node = next(node for node in changed.graph.node if node.op_type == kind)
    node.input[position], node.input[position + 1] = "stem.input.step", "stem.input.zero_point"
    onnx.save(changed, tmp_path / "changed.onnx")
    with pytest.raises(bb.VerificationError, match=f"^{owner}: the ONNX file"):
        verify(tmp_path / "changed.onnx", inputs)


@pytest.mark.parametrize(("kind", "owner"), [(MEAN, "squeeze.input"), (PRODUCT, "last.input")])
def test_other_codes_are_found(written: Any, kind: str, owner: str, tmp_path: Any) -> None:
    """Codes of another image are wrong even where their constants are right."""
    verify, inputs, model = written
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    node = next(node for node in changed.graph.node if node.op_type == kind)
    node.input[0] = next(one.output[0] for one in changed.graph.node if one.output[0].startswith("stem.codes"))
    onnx.save(changed, tmp_path / "changed.onnx")
    with pytest.raises(bb.VerificationError, match=f"^{owner}"):
        verify(tmp_path / "changed.onnx", inputs)
