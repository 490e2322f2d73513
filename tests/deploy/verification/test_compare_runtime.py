"""The file in onnxruntime: names, integers, float arithmetic, and errors that rounding does not explain."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import ModelProto, helper
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.onnx.runtime import Session
from tests.deploy.exported import Exported, Function, Several, exported, prove

FEATURES = torch.zeros(1, 6)


def linear(forward: Callable[..., object], **options: object) -> Exported:
    return exported(Function(forward, a=nn.Linear(6, 8), b=nn.Linear(8, 4)), FEATURES, drop=0.0, **options)


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


@pytest.mark.parametrize("plain", [False, True])
def test_numbers_that_only_the_whole_file_returns_wrong_are_found(tmp_path: Path, monkeypatch, plain: bool) -> None:
    case = linear(lambda self, x: self.b(self.a(x).relu()).tanh(), bits=(4,))
    file = case.write(tmp_path / "right.onnx")
    assert case.verify(file).failure is None
    run = Session.run

    def rounded(self: Session, feeds: Mapping[str, Any]) -> dict[str, Any]:
        found = run(self, feeds)
        whole = set(feeds) == {"x"} and "output" in found and (set(found) == {"output"}) == plain
        return found | ({"output": found["output"].round(4)} if whole else {})

    monkeypatch.setattr(Session, "run", rounded)
    with pytest.raises(bb.VerificationError, match=r"^output: numbers .* when the whole file runs, though all that"):
        case.verify(file)


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


@pytest.mark.parametrize(("far", "added"), [(-1e9, False), (-1e30, True), (torch.finfo(torch.float32).min, False)])
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
        bb.verify(case.compressor, small, export(small, case, tmp_path), case.inputs)
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


def export(small: bb.DeployedNetwork, case: Exported, folder: Path) -> Path:
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


class Padded(nn.Module):
    """A depthwise convolution behind a padding of one side alone, as in MobileNets that were converted from others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 5)
        self.depthwise = nn.Conv2d(8, 8, 3, stride=2, groups=8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.pad(nn.functional.relu6(self.first(x)), (0, 1, 0, 1))
        return self.head(nn.functional.relu6(self.depthwise(x)).mean((2, 3)))


def test_the_runtime_loads_a_convolution_that_is_cut_off_behind_its_padding(tmp_path: Path) -> None:
    """It ends the process where it does not know how many axes the padded tensor has."""
    torch.manual_seed(0)
    network, x = Padded().eval(), torch.randn(4, 3, 16, 16)
    prove(network, x, tmp_path / "small.onnx", bb.Spec())
    assert "Pad" in {node.op_type for node in onnx.load(str(tmp_path / "small.onnx")).graph.node}


class Best(nn.Module):
    """Numbers that are chosen by scores, many of which are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.numbers = nn.Linear(4, 40), nn.Linear(4, 40)

    def forward(self, x: Tensor) -> Tensor:
        return self.numbers(x).gather(-1, self.scores(x).round().sigmoid().topk(5, -1).indices)


def test_numbers_that_are_chosen_by_their_order_are_refused_with_the_way_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, x = Best().eval(), torch.randn(16, 4)
    compressor = bb.attach(network, x)
    compressor.calibrate([x])
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8))
    small = bb.deploy(compressor)
    bb.export_onnx(small, x, tmp_path / "small.onnx")
    with pytest.raises(bb.VerificationError, match=r"output: .* computed by TopK, .* without this last step"):
        bb.verify(compressor, small, tmp_path / "small.onnx", x)
