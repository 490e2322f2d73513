"""What is wrong by very little is found and named: in the deployed network, and in the file."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import ModelProto, helper, numpy_helper
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.records.integer_network import IntegerNetwork
from bayesbits.utils.naming import key_of
from tests.deploy.exported import Exported, exported


class TwoHeads(nn.Module):
    """A residual block, and behind it classes for the image and for each of its points."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.first, self.second = nn.Conv2d(6, 8, 3, padding=1), nn.Conv2d(8, 6, 3, padding=1)
        self.act = nn.GELU()
        self.head, self.dense = nn.Linear(6, 4), nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.act(self.norm(self.stem(x)))  # behind GELU, quantizing is a step of its own
        x = (x + self.second(self.first(x).relu())).relu()
        return {"classes": self.head(x.mean((2, 3))), "points": self.dense(x)}


@pytest.fixture(scope="module")
def case() -> Exported:
    return exported(TwoHeads(), torch.zeros(1, 3, 8, 8), bits=(4,), drop=0.25, count=32)


@pytest.fixture(scope="module")
def file(case: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return case.write(tmp_path_factory.mktemp("file") / "network.onnx")


def test_all_outputs_are_compared_by_name_and_decide_along_their_own_axes(case: Exported, file: Path) -> None:
    found = case.verify(file)
    assert found.failure is None
    assert [tensor.output for tensor in found.outputs] == ["classes", "points"]
    for outputs in (found.simulated.outputs, found.outputs):
        assert [(output.name, output.predictions_end_to_end.classes) for output in outputs] in (
            [("classes", 4), ("points", 3)],
            [("head", 4), ("dense", 3)],
        )
        assert [output.predictions_end_to_end.compared for output in outputs] == [32, 32 * 64]
    tensors = {tensor.name for tensor in found.simulated.tensors}
    assert tensors == {grid.name for grid in case.small.integer.structure.grids}
    assert {"act.output", "second.output"} < tensors, "operands of additions are among them"


def test_the_same_again_is_proven(case: Exported, tmp_path: Path) -> None:
    small = mutated(case, lambda small: None)
    assert verified(case, small, tmp_path).failure is None


def mutated(case: Exported, change: Callable[[bb.DeployedNetwork], Any]) -> bb.DeployedNetwork:
    small = copy.deepcopy(case.small)
    change(small)
    small.program.recompile()
    return small


def verified(case: Exported, small: bb.DeployedNetwork, tmp_path: Path) -> bb.Verification:
    """Verify against a file that is wrong in the same way."""
    bb.export_onnx(small, case.example, tmp_path / "network.onnx")
    return bb.verify(case.compressor, small, tmp_path / "network.onnx", case.inputs)


def tensor(small: bb.DeployedNetwork, name: str) -> Tensor:
    """A tensor of the record, which the module that executes it holds as well."""
    held = small.integer.tensors[name]
    layer, _, what = name.rpartition(".")
    module = small.program.get_submodule(f"layers.{key_of(layer)}")
    if what in ("codes", "bias"):
        setattr(module, what, held)
    return held


def one_more(name: str) -> Callable[[bb.DeployedNetwork], None]:
    def change(small: bb.DeployedNetwork) -> None:
        tensor(small, name).view(-1)[0] += 1

    return change


def scale(small: bb.DeployedNetwork) -> None:
    small.program.get_submodule(f"layers.{key_of('first')}").scale *= 1 + 1e-3


def step(small: bb.DeployedNetwork) -> None:
    small.integer.tensors["second.steps"].mul_(1 + 1e-3)


def swap(small: bb.DeployedNetwork) -> None:
    for name in ("first.codes", "first.bias"):
        held = tensor(small, name)
        held[:2] = held[:2].flip(0).clone()


def regrid(name: str, **fields: Any) -> Callable[[bb.DeployedNetwork], None]:
    def change(small: bb.DeployedNetwork) -> None:
        structure = small.integer.structure
        grids = tuple(replace(grid, **fields) if grid.name == name else grid for grid in structure.grids)
        small.integer = IntegerNetwork(replace(structure, grids=grids), small.integer.tensors)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (scale, "first: scale differs"),
        (step, "second: step of the weight differs"),
        (one_more("stem.bias"), "stem: bias differs in 1 of 5 values"),
        (one_more("head.bias"), "head: bias differs in 1 of 4 values"),
        (one_more("second.codes"), "second: code of the weight differs in 1 of"),
        (swap, "first: code of the weight differs"),
        (regrid("second.input", signed=True), "second.input: signed is True"),
        (regrid("stem.input", signed=False), "stem.input: signed is False"),
        (regrid("second.input", high=14), "second.input: high is 14"),
        (regrid("act.output", low=1), "act.output: low is 1"),
        (regrid("act.output", alpha=None), "act.output: alpha is None"),
        (regrid("stem.input", alpha=-9.0), "stem.input: alpha is -9.0"),
    ],
)
def test_a_wrong_constant_of_the_deployed_network_is_found_and_named(change, message, case, file):
    with pytest.raises(bb.VerificationError, match=f"^{message}") as raised:
        bb.verify(case.compressor, mutated(case, change), file, case.inputs)
    assert raised.value.found is not None
    assert raised.value.found.failure == str(raised.value)
    assert bb.Verification.from_json(raised.value.found.to_json()) == raised.value.found


def node_of(small: bb.DeployedNetwork, target: str) -> Any:
    return next(node for node in small.program.graph.nodes if node.target == target)


def negate_second_head(small: bb.DeployedNetwork) -> None:
    (output,) = (node for node in small.program.graph.nodes if node.op == "output")
    first, second = output.args[0]
    with small.program.graph.inserting_before(output):
        negated = small.program.graph.call_function(torch.ops.aten.neg.default, (second,))
    output.args = ((first, negated),)


def leave_out_operand(small: bb.DeployedNetwork) -> None:
    numbers = node_of(small, f"dequantizers.{key_of('act.output')}")
    quantizer = numbers.args[0]
    assert quantizer.target == f"quantizers.{key_of('act.output')}"
    numbers.replace_all_uses_with(quantizer.args[0])
    for node in (numbers, quantizer):
        small.program.graph.erase_node(node)


def swap_in_the_graph(small: bb.DeployedNetwork) -> None:
    """The constants are all as they should be."""
    layer = node_of(small, f"layers.{key_of('second')}")
    with small.program.graph.inserting_before(layer):
        turned = small.program.graph.call_function(torch.ops.aten.flip.default, (layer.args[0], [1]))
    layer.args = (turned,)


def bound(end: str) -> Callable[[bb.DeployedNetwork], None]:
    def change(small: bb.DeployedNetwork) -> None:
        structure = small.integer.structure
        before = small.integer.layer("first")
        after = replace(before, **{end: getattr(before, end) + (1 if end == "output_low" else -1)})
        layers = tuple(after if layer is before else layer for layer in structure.layers)
        small.integer = IntegerNetwork(replace(structure, layers=layers), small.integer.tensors)
        small.program.get_submodule(f"layers.{key_of('first')}").layer = after

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (negate_second_head, "points: off by"),
        (leave_out_operand, "act.output: quantized in the simulation, and read without being quantized"),
        (swap_in_the_graph, "second.input: .* codes are not those of the simulation"),
        (bound("output_low"), "second.input: .* codes are not those of the simulation"),
        (bound("output_high"), "second.input: .* codes are not those of the simulation"),
    ],
)
def test_a_wrong_deployed_network_is_found_and_named_by_running_it(change, message, case, tmp_path):
    with pytest.raises(bb.VerificationError, match=f"^{message}") as raised:
        verified(case, mutated(case, change), tmp_path)
    found = raised.value.found
    assert found is not None
    assert found.derived.weights > 0, "all constants were right"


def constant(name: str, move: Callable[[Any], Any]) -> Callable[[ModelProto], None]:
    def change(model: ModelProto) -> None:
        held = next(one for one in model.graph.initializer if one.name == name)
        value = numpy_helper.to_array(held).copy()
        held.CopyFrom(numpy_helper.from_array(move(value).astype(value.dtype), name))

    return change


def first_more(value: Any) -> Any:
    value.flat[0] += 1
    return value


def negate_in_the_file(model: ModelProto) -> None:
    node = next(node for node in model.graph.node if "points" in node.output)
    node.output[0] = "before"
    model.graph.node.append(helper.make_node("Neg", ["before"], ["points"], name="negated"))


def leave_out_in_the_file(model: ModelProto) -> None:
    """The addition reads what was quantized and not the quantized; its constants stay."""
    quantize = next(n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[1] == "act.output.step")
    add = next(node for node in model.graph.node if node.op_type == "Sum")
    add.input[:] = [quantize.input[0] if name.startswith("act.output") else name for name in add.input]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (constant("first.weight.step", lambda x: x * (1 + 1e-3)), "first: weight.step differs"),
        (constant("stem.bias", first_more), "stem: bias differs in 1 of 5 values"),
        (constant("second.weight", first_more), "second: weight differs in 1 of"),
        (constant("first.weight", lambda x: x[[1, 0, *range(2, len(x))]]), "first: weight differs"),
        (constant("stem.input.zero_point", lambda x: x - 1), "stem.input: zero_point differs"),
        (constant("first.codes.high", lambda x: x - 1), "first: codes.high differs"),
        (negate_in_the_file, "dense: |points: "),
        (leave_out_in_the_file, "first.input: |head.input: |dense.input: "),
    ],
)
def test_a_wrong_file_is_found_and_named(change, message, case, file, tmp_path):
    model = onnx.load(str(file))
    change(model)
    onnx.save(model, str(tmp_path / "wrong.onnx"))
    with pytest.raises(bb.VerificationError, match=f"^({message})"):
        case.verify(tmp_path / "wrong.onnx")
