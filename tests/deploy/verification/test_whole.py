"""Every call, name and output of a network is compared, and what float arithmetic explains is no mistake."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch
from onnx import ModelProto, helper
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.records.integer_network import IntegerNetwork
from bayesbits.utils.naming import key_of
from bayesbits.utils.pytree import Tree
from tests.deploy.exported import Exported, exported

FEATURES = torch.zeros(1, 6)
IMAGE = torch.zeros(1, 3, 6, 6)


class Function(nn.Module):
    """A network of some layers that a function connects."""

    def __init__(self, forward: Callable[..., object], **layers: nn.Module) -> None:
        super().__init__()
        self.function = forward
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> object:
        return self.function(self, x)


def linear(forward: Callable[..., object], **options: object) -> Exported:
    return exported(Function(forward, a=nn.Linear(6, 8), b=nn.Linear(8, 4)), FEATURES, drop=0.0, **options)


class Twice(nn.Module):
    """One layer that is called with two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.b((self.a(x.tanh()) - self.a(y.tanh())).relu())


def test_every_call_of_a_layer_reads_what_it_should(tmp_path: Path) -> None:
    case = exported(Twice(), (FEATURES, FEATURES.clone()), bits=(4,), drop=0.0)
    assert case.verify(case.write(tmp_path / "right.onnx")).failure is None
    first, second = (node for node in case.small.program.graph.nodes if node.target == f"layers.{key_of('a')}")
    second.args = first.args
    case.small.program.recompile()
    with pytest.raises(bb.VerificationError, match=r"^a\.input: .* codes are not those of the simulation") as raised:
        case.verify(case.write(tmp_path / "wrong.onnx"))
    assert raised.value.found is not None
    assert raised.value.found.wrong


class Several(nn.Module):
    """Two inputs, and two outputs of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"one": self.a(x), "two": self.b(x + y)}


@pytest.fixture(scope="module")
def several() -> Exported:
    return exported(Several(), (FEATURES, FEATURES.clone()), bits=(4,), drop=0.0, count=8)


@pytest.fixture(scope="module")
def file(several: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return several.write(tmp_path_factory.mktemp("file") / "network.onnx")


def exchange(*names: str) -> Callable[[ModelProto], None]:
    """Swap two names in the whole file: what each tensor is stays where it was."""
    other = dict(zip(names, reversed(names), strict=True))

    def change(model: ModelProto) -> None:
        for ends in (model.graph.input, model.graph.output):
            for value in ends:
                value.name = other.get(value.name, value.name)
        for node in model.graph.node:
            node.input[:] = [other.get(name, name) for name in node.input]
            node.output[:] = [other.get(name, name) for name in node.output]
        for entry in model.metadata_props:
            for name in names:
                entry.value = entry.value.replace(f'"value": "{name}"', f'"value": "/{name}"')
            for name in names:
                entry.value = entry.value.replace(f'"value": "/{name}"', f'"value": "{other[name]}"')

    return change


def leave_out(model: ModelProto) -> None:
    del model.graph.output[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (exchange("one", "two"), "outputs: the ONNX file has two, one, and the network one, two"),
        (exchange("x", "y"), "inputs: the ONNX file has y, x, and the network x, y"),
        (leave_out, "outputs: the ONNX file has one, and the network one, two"),
    ],
)
def test_inputs_and_outputs_of_the_file_have_their_names(change, message, several, file, tmp_path):
    model = onnx.load(str(file))
    change(model)
    onnx.save(model, str(tmp_path / "wrong.onnx"))
    with pytest.raises(bb.VerificationError, match=f"^{message}"):
        several.verify(tmp_path / "wrong.onnx")


def exchanged(tree: Tree) -> Tree:
    """A dict whose two items are the other way around."""
    return replace(tree, items=tree.items[::-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda it: {"inputs": it.inputs[::-1]}, "inputs: the record has y, x, and the network x, y"),
        (lambda it: {"outputs": it.outputs[::-1]}, "outputs: the record has two, one, and the network one, two"),
        (
            lambda it: {
                "takes": tuple(replace(one, name=name) for one, name in zip(it.takes, "yx", strict=True)),
                "inputs": it.inputs[::-1],
            },
            "arguments: the record has y, x, and the network x, y",
        ),
        (lambda it: {"returns": exchanged(it.returns)}, "one: the deployed network returns another of its outputs"),
        (
            lambda it: {"returns": replace(it.returns, keys=it.returns.keys[::-1]), "outputs": it.outputs[::-1]},
            "outputs: the record has two, one, and the network one, two",
        ),
        (
            lambda it: {"returns": replace(it.returns, kind="tuple", keys=())},
            "outputs: the deployed network returns a tuple of 0, 1, and the simulation a dict of one, two",
        ),
    ],
)
def test_the_deployed_network_takes_and_returns_what_the_network_does(change, message, several, tmp_path):
    small = copy.deepcopy(several.small)
    structure = small.integer.structure
    small.integer = IntegerNetwork(replace(structure, **change(structure)), small.integer.tensors)
    with pytest.raises(bb.VerificationError, match=f"^{message}"):
        bb.verify(several.compressor, small, _export(small, several, tmp_path), several.inputs)


def test_a_decision_of_the_file_is_not_off_by_one(tmp_path: Path) -> None:
    case = linear(lambda self, x: self.b(self.a(x).relu()).argmax(1), bits=(4,))
    file = case.write(tmp_path / "right.onnx")
    assert case.verify(file).failure is None
    model = onnx.load(str(file))
    node = next(node for node in model.graph.node if "output" in node.output)
    node.output[0] = "before"
    model.graph.initializer.append(helper.make_tensor("one", onnx.TensorProto.INT64, [], [1]))
    model.graph.node.append(helper.make_node("Add", ["before", "one"], ["output"], name="more"))
    onnx.save(model, str(tmp_path / "wrong.onnx"))
    with pytest.raises(bb.VerificationError, match=r"^output: 64 of 64 values of the output differ"):
        case.verify(tmp_path / "wrong.onnx")


@pytest.mark.parametrize("far", [-1e9, -1e30, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("added", [False, True])
def test_a_huge_constant_does_not_hide_other_numbers(far: float, added: bool, tmp_path: Path) -> None:
    def forward(self: Function, x: Tensor) -> Tensor:
        x, mask = self.b(self.a(x).relu()).tanh(), torch.arange(4) == 3
        return x + mask * far if added else x.masked_fill(mask, far)

    case = linear(forward, bits=(4,))
    file = case.write(tmp_path / "right.onnx")
    assert case.verify(file).failure is None
    small = copy.deepcopy(case.small)
    tanh = next(node for node in small.program.graph.nodes if "tanh" in str(node.target))
    with small.program.graph.inserting_after(tanh):
        negated = small.program.graph.call_function(torch.ops.aten.neg.default, (tanh,))
    tanh.replace_all_uses_with(negated, delete_user_cb=lambda user: user is not negated)
    small.program.recompile()
    with pytest.raises(bb.VerificationError, match=r"^output: off by"):
        bb.verify(case.compressor, small, _export(small, case, tmp_path), case.inputs)
    model = onnx.load(str(file))
    tanh = next(node for node in model.graph.node if node.op_type == "Tanh")
    for node in model.graph.node:
        node.input[:] = ["negated" if name == tanh.output[0] else name for name in node.input]
    model.graph.node.insert(
        list(model.graph.node).index(tanh) + 1, helper.make_node("Neg", [tanh.output[0]], ["negated"], name="negated")
    )
    onnx.save(model, str(tmp_path / "wrong.onnx"))
    with pytest.raises(bb.VerificationError, match=r"^output: numbers of the output are off by"):
        case.verify(tmp_path / "wrong.onnx")


def _export(small: bb.DeployedNetwork, case: Exported, folder: Path) -> Path:
    bb.export_onnx(small, case.example, folder / "same.onnx")
    return folder / "same.onnx"


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: self.c(x).mean((2, 3)),
        lambda self, x: nn.functional.adaptive_avg_pool2d(self.c(x), 1),
        lambda self, x: self.b(self.c(x).relu().mean((2, 3))).sum(1),
        lambda self, x: (self.b(self.c(x).relu().mean((2, 3))), x.mean((2, 3))),
        lambda self, x: (self.c(x), self.c(x).mean()),
    ],
)
def test_averages_of_numbers_are_float_arithmetic_and_no_mistake(forward, tmp_path):
    network = Function(forward, c=nn.Conv2d(3, 8, 3), b=nn.Linear(8, 12))
    case = exported(network, torch.zeros(1, 3, 17, 17), bits=(8,), drop=0.0, count=32)
    assert case.verify(case.write(tmp_path / "network.onnx")).failure is None


def test_outputs_may_be_truth_values(tmp_path: Path) -> None:
    case = linear(lambda self, x: self.b(self.a(x).relu()) > 0)
    file = case.write(tmp_path / "right.onnx")
    assert case.verify(file).simulated.outputs[0].values == 64 * 4
    model = onnx.load(str(file))
    node = next(node for node in model.graph.node if "output" in node.output)
    node.output[0] = "before"
    model.graph.node.append(helper.make_node("Not", ["before"], ["output"], name="not"))
    onnx.save(model, str(tmp_path / "wrong.onnx"))
    with pytest.raises(bb.VerificationError, match=r"^output: 256 of 256 values of the output differ"):
        case.verify(tmp_path / "wrong.onnx")


def test_the_output_of_a_regression_is_named_with_its_difference(tmp_path: Path) -> None:
    case = exported(nn.Linear(6, 1), FEATURES, bits=(4,), drop=0.0, count=8)
    found = case.verify(case.write(tmp_path / "network.onnx"))
    assert [(place.kind, place.output) for place in found.outputs] == [("layer", "output")]
    lines = str(found).splitlines()
    ends = [place for place, line in enumerate(lines) if line.startswith("    end to end")]
    assert len(ends) == 2
    assert all(lines[place + 1].startswith("      output: off by ") for place in ends)
    assert "6 weights, 1 bias and 1 grid, all equal" in lines[1]
    assert "48 codes of 1 tensor, fed" in str(found)
