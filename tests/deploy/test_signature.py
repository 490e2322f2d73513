"""What the network takes and returns, the deployed network, its folder and its file take and return."""

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import bayesbits as bb
from bayesbits.deploy.onnx import nodes
from bayesbits.deploy.onnx.float_model import export_float_onnx
from bayesbits.deploy.onnx.latency import measure_latencies
from bayesbits.deploy.verification.runtime import Session
from bayesbits.utils.batches import split_inputs
from bayesbits.utils.pytree import describe, tensors_in


def rows(seed: int = 0, count: int = 3) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


def deployed(model: nn.Module, inputs: Any, bits: int = 8) -> tuple[bb.Compressor, bb.DeployedNetwork]:
    torch.manual_seed(0)
    compressor = bb.attach(model.eval(), inputs, bb.Spec(bits=(4, 8), residual_bits=None))
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan.uniform(compressor.topology, bits, bits))
    return compressor, bb.deploy(compressor)


def run(model: nn.Module, inputs: Any) -> Any:
    args, kwargs = split_inputs(inputs)
    with torch.no_grad():
        return model(*args, **kwargs)


def check(model: nn.Module, inputs: Any, folder: Path, bits: int = 8) -> tuple[list[str], list[str]]:
    """Deploy, save, load, export, and compare what comes out; returns the names of the file's inputs and outputs."""
    compressor, small = deployed(model, inputs, bits)
    expected, actual = run(model, inputs), run(small, inputs)
    close(actual, expected)
    bb.save(small, folder / "small")
    for loaded in (bb.load(folder / "small"), bb.load(folder / "small", compressor.detach())):
        again = run(loaded, inputs)
        assert describe(again, []) == describe(actual, [])
        assert all(map(torch.equal, tensors_in(again), tensors_in(actual)))
    bb.export_onnx(small, inputs, folder / "small.onnx")
    session = onnxruntime.InferenceSession(str(folder / "small.onnx"), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    outputs = [value.name for value in session.get_outputs()]
    assert (tuple(names), tuple(outputs)) == (small.integer.structure.inputs, small.integer.structure.outputs)
    structure = small.integer.structure
    part = tree_map_only(Tensor, lambda x: x[:2] if structure.dynamic_batch and x.dim() else x, inputs)
    feeds = {name: x.numpy() for name, x in zip(names, small.bind(*split_inputs(part)), strict=True)}
    for mine, theirs in zip(session.run(None, feeds), tensors_in(run(small, part)), strict=True):
        torch.testing.assert_close(torch.from_numpy(mine), theirs, rtol=1e-5, atol=1e-6)
    return names, outputs


def close(actual: Any, expected: Any) -> None:
    """The same containers, and the same numbers in them."""
    assert describe(actual, []) == describe(expected, [])
    for mine, theirs in zip(tensors_in(actual), tensors_in(expected), strict=True):
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=1e-4, atol=1e-5)


class Returning(nn.Module):
    """A head, and any containers of what it gives, of its input and of a buffer."""

    def __init__(self, make: Callable[[Tensor, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.body, self.logits = nn.Linear(4, 6), nn.Linear(6, 3)
        self.register_buffer("scale", torch.ones(3))
        self.make = make

    def forward(self, sample: Tensor) -> Any:
        return self.make(self.logits(torch.relu(self.body(sample))), sample, self.scale)


@pytest.mark.parametrize(
    ("make", "outputs"),
    [
        # The first is called like a layer, the second is the first, the third is the input and is called like it.
        (lambda y, x, b: {"logits": y, "scores": y, "sample": x}, ["logits", "scores", "output_sample"]),
        (lambda y, x, b: {"sample": y}, ["output_sample"]),
        (lambda y, x, b: {"0": b, "1": [y, None, ({"a": -y},)], "2": 3}, ["output0", "output1.0", "output1.2.0.a"]),
    ],
)
def test_what_the_network_returns_is_returned(make, outputs, tmp_path):
    assert check(Returning(make), rows(), tmp_path)[1] == outputs


@dataclass
class Cache:
    """An object of a class that torch does not know."""

    keys: list[Tensor]
    length: int
    owner: Any = None


def test_objects_are_returned_as_their_attributes():
    def make(y: Tensor, x: Tensor, scale: Tensor) -> Any:
        cache = Cache([y, x], 2)
        cache.owner = cache  # a circle
        return namedtuple("Output", ("logits", "cache"))(y, cache)

    _, small = deployed(Returning(make), rows())
    logits, cache = run(small, rows())
    assert torch.equal(cache["keys"][0], logits)
    assert torch.equal(cache["keys"][1], rows())
    assert set(cache) == {"keys"}


class Taking(nn.Module):
    """A dict, flags, and whatever else is given by name."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, batch: dict[str, Any], flag: bool = True, mode: str | None = None, **more: Tensor) -> Tensor:
        x = self.left(batch["image"]) - self.right(more["zeta"] * 2 + more["alpha"] + batch["others"][0])
        x = x if batch["scale"] is None else x * batch["scale"]
        return self.head(torch.relu(x) if flag else torch.tanh(x) + (1 if mode == "shifted" else 0))


BATCH = {"image": rows(1), "others": [rows(2)], "scale": None}


@pytest.mark.parametrize("flags", [{}, {"flag": False, "mode": "shifted"}])
def test_nested_inputs_flags_and_any_names(flags, tmp_path):
    inputs = {"zeta": rows(3), **flags, "batch": BATCH, "alpha": rows(4)}
    names, _ = check(Taking(), inputs, tmp_path)
    assert names == ["batch.image", "batch.others.0", "zeta", "alpha"]


def test_another_flag_or_another_container_is_refused():
    inputs = {"batch": BATCH, "flag": False, "zeta": rows(3), "alpha": rows(4)}
    _, small = deployed(Taking(), inputs)
    run(small, {**inputs, "mode": None})  # what is the default may be said
    for change, kind, message in (
        ({"flag": True}, ValueError, "flag was false when the network was attached.*it was given True"),
        ({"mode": "shifted"}, ValueError, "mode was null when .* given 'shifted'"),
        ({"batch": {**BATCH, "scale": 2.0}}, ValueError, r"batch\.scale was null"),
        ({"batch": {"image": rows()}}, TypeError, r"a dict with the keys \['image', 'others', 'scale'\] as batch"),
        ({"batch": {**BATCH, "others": []}}, TypeError, r"takes a list of 1 as batch\.others"),
        ({"zeta": 3.0}, TypeError, "takes a tensor as zeta, and was given a float"),
        ({"zeta": rows().long()}, TypeError, "takes zeta as float32, and was given int64"),
        ({"omega": rows()}, TypeError, "takes the inputs batch, flag, zeta, alpha, and was given"),
    ):
        with pytest.raises(kind, match=message):
            run(small, {**inputs, **change})
    del inputs["flag"]
    with pytest.raises(TypeError, match="takes the inputs batch, flag, zeta, alpha, and was given"):
        run(small, inputs)  # left out, it would be True


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, left: Tensor, /, *rest: Tensor) -> Tensor:
        return self.left(left) - self.right(rest[0]) + (rest[1] if len(rest) > 1 else 0)


def test_one_tensor_given_twice_is_two_inputs(tmp_path):
    x = rows()
    assert check(Two(), (x, x), tmp_path)[0] == ["left", "rest.0"]
    _, small = deployed(Two(), (x, x))
    other = rows(5)
    bb.export_onnx(small, (x, x), tmp_path / "twice.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "twice.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"left": x.numpy(), "rest.0": other.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), run(small, (x, other)), rtol=1e-5, atol=1e-6)


def test_times_of_files_with_nested_inputs(tmp_path):
    inputs = {"zeta": rows(3), "batch": BATCH, "alpha": rows(4)}
    model = Taking()
    compressor, small = deployed(model, inputs)
    bb.export_onnx(small, inputs, tmp_path / "small.onnx")
    export_float_onnx(compressor.detach(), inputs, tmp_path / "float.onnx")
    files = {name: tmp_path / f"{name}.onnx" for name in ("small", "float")}
    found = measure_latencies(files, small, inputs, threads=(1,), batches=(2,), rounds=1)
    assert [one.name for one in found] == ["small", "float"]
    session = onnxruntime.InferenceSession(str(files["float"]), providers=["CPUExecutionProvider"])
    feeds = {"batch.image": rows(1), "batch.others.0": rows(2), "zeta": rows(3), "alpha": rows(4)}
    (output,) = session.run(None, {name: x.numpy() for name, x in feeds.items()})
    close(torch.from_numpy(output), run(model, inputs))


class Positions(nn.Module):
    """Numbers for every place, which are no batch, before the rows that have one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, positions: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return self.layer(batch["x"] * positions[:, None] - batch["y"])


@pytest.mark.parametrize("count", [1, 2])
def test_the_batch_is_found_behind_what_is_none(count, tmp_path):
    inputs = (torch.randn(6), {"x": torch.randn(count, 6, 4), "y": torch.randn(count, 6, 4)})
    compressor, small = deployed(Positions(), inputs)
    assert small.integer.structure.batched == (False, True, True)
    assert (
        run(small, tree_map_only(Tensor, lambda x: x if x.dim() == 1 else x[:1].expand(5, 6, 4), inputs)).shape[0] == 5
    )
    bb.export_onnx(small, inputs, tmp_path / "small.onnx")
    export_float_onnx(compressor.detach(), inputs, tmp_path / "float.onnx")
    files = {name: tmp_path / f"{name}.onnx" for name in ("small", "float")}
    found = measure_latencies(files, small, inputs, threads=(1,), batches=(1, 3), rounds=1)
    assert [(one.name, one.batch) for one in found] == [("small", 1), ("float", 1), ("small", 3), ("float", 3)]


def test_times_are_taken_of_inputs_by_their_names(tmp_path, monkeypatch):
    inputs = (torch.randn(6), {"x": torch.randn(2, 6, 4), "y": torch.randn(2, 6, 4)})
    _, small = deployed(Positions(), inputs)
    bb.export_onnx(small, inputs, tmp_path / "small.onnx")
    fed: list[dict[str, Any]] = []
    monkeypatch.setattr(Session, "run", lambda self, feeds: fed.append(feeds))
    turned = (inputs[0], dict(reversed(inputs[1].items())))
    measure_latencies({"small": tmp_path / "small.onnx"}, small, turned, threads=(1,), batches=(1,), rounds=1)
    assert set(fed[0]) == {"positions", "batch.x", "batch.y"}
    assert torch.equal(torch.from_numpy(fed[0]["batch.x"]), inputs[1]["x"][:1])


@pytest.mark.parametrize("image", [True, False])
def test_times_of_networks_that_take_one_size_alone(image, tmp_path):
    model, example = (nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(3, 8, 8)) if image else (FixedBatch(), None)
    example = torch.randn(3, 2, 4) if example is None else example
    compressor, small = deployed(model, example)
    bb.export_onnx(small, example, tmp_path / "small.onnx")
    export_float_onnx(compressor.detach(), example, tmp_path / "float.onnx")
    files = {name: tmp_path / f"{name}.onnx" for name in ("small", "float")}
    found = measure_latencies(files, small, example, threads=(1,), rounds=1)
    assert [one.batch for one in found] == [1, 1]


class Choosing(nn.Module):
    """Takes any function and any dtype, and returns what it is told to."""

    def __init__(self, make: Callable[[Tensor], Any] = lambda y: y) -> None:
        super().__init__()
        self.layer, self.make = nn.Linear(4, 2), make

    def forward(self, x: Tensor, activation: Any = torch.relu, kind: Any = torch.float32) -> Any:
        return self.make(activation(self.layer(x)).to(kind))


def test_what_can_never_be_given_again_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"attached with <function .* as activation, .*Way out: make it the default"):
        deployed(Choosing(), (rows(), lambda x: -x))
    _, small = deployed(Choosing(), {"x": rows()})  # a default may be left out
    run(small, {"x": rows()})
    compressor, small = deployed(Choosing(), {"x": rows(), "kind": torch.float64})
    bb.save(small, tmp_path / "small")
    with pytest.raises(ValueError, match=r"takes an object as kind, whose class is not stored.*Way out"):
        bb.load(tmp_path / "small", compressor.detach())


@pytest.mark.parametrize(
    ("make", "message"),
    [(lambda y: None, "returns no tensors, but a NoneType"), (lambda y: {y}, "tensors in a set.*use a tuple")],
)
def test_outputs_without_tensors_or_order_are_refused(make, message):
    with pytest.raises(TypeError, match=message):
        bb.attach(Choosing(make), rows())


def test_a_layer_called_like_the_output(tmp_path):
    model = nn.Sequential(OrderedDict(first=nn.Linear(4, 4), output=nn.Linear(4, 2)))
    assert check(model, rows(), tmp_path) == (["input"], ["output"])


class Slashes(nn.Module):
    """Names of modules that a path could be mistaken for."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Module()
        self.a.b = nn.Linear(4, 4)
        self.add_module("a/b", nn.Linear(4, 4))
        self.add_module("a~1b", nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.a.b(self.get_submodule("a/b")(x).relu()) + self.get_submodule("a~1b")(x)


def test_slashes_in_names_of_modules(tmp_path):
    check(Slashes(), rows(), tmp_path)


class Shuffle(nn.Module):
    """Channels shuffled as the authors of ShuffleNet do it: a view of a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(3, 6, 1), nn.Conv1d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        x = x.view(len(x), 2, 3, -1).transpose(1, 2).contiguous().view(len(x), 6, -1)
        return self.last(x)


def test_views_of_copies_of_codes(tmp_path):
    check(Shuffle(), torch.randn(2, 3, 5), tmp_path, bits=4)


def test_an_image_without_a_batch(tmp_path):
    last = nn.ConvTranspose2d(4, 2, 2, stride=2)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 1), nn.ReLU(), last)
    check(model, torch.randn(3, 8, 8), tmp_path)


def test_examples_in_double_and_half_precision(tmp_path):
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    check(model, rows().double(), tmp_path)
    model.float()
    _, small = deployed(model, rows())
    bb.export_onnx(small, rows().half(), tmp_path / "half.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "half.onnx"), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].type == "tensor(float)"


def test_networks_in_half_precision_are_refused():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).bfloat16().eval()
    compressor = bb.attach(model, rows().bfloat16())
    compressor.calibrate([rows().bfloat16()])
    compressor.fix()
    with pytest.raises(ValueError, match=r"0\.weight is in bfloat16.*Way out: model\.float\(\)"):
        bb.deploy(compressor)
    model.float()
    close(run(bb.deploy(compressor), rows()), run(model, rows()))


class FixedBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.reshape(3, 8))


class ReturnedBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x), len(x)


@pytest.mark.parametrize("make", [FixedBatch, ReturnedBatch])
def test_a_batch_that_the_code_fixes_is_not_any(make, tmp_path):
    example = torch.randn(3, 2, 4) if make is FixedBatch else rows()
    _, small = deployed(make(), example)
    assert not small.integer.structure.dynamic_batch
    assert "takes only batches of the size" in str(small)
    close(run(small, example), run(small, example))
    small.export_program()
    bb.export_onnx(small, example, tmp_path / "small.onnx")


def test_exported_programs_take_nested_inputs():
    inputs = (BATCH, True)

    class Positional(Taking):
        def forward(self, batch: dict[str, Any], flag: bool = True) -> Tensor:
            return super().forward(batch, flag, zeta=batch["image"], alpha=batch["image"])

    _, small = deployed(Positional(), inputs)
    program = small.export_program().module()
    for count in (1, 3):
        part = tree_map_only(Tensor, lambda x, count=count: x[:count], BATCH)
        assert torch.equal(program(part), run(small, (part,)))


def test_what_is_not_final_is_refused():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).eval()
    compressor = bb.attach(model, rows())
    compressor.calibrate([rows()])
    with pytest.raises(ValueError, match=r"not final yet.*Way out: compressor\.fix\(\)"):
        bb.deploy(compressor)
    with pytest.raises(TypeError, match="deploy takes the Compressor that attach returned, and this is a Sequential"):
        bb.deploy(model)


def test_a_file_that_does_not_load_is_not_written(tmp_path, monkeypatch):
    _, small = deployed(nn.Sequential(nn.Linear(4, 2)), rows())
    bb.export_onnx(small, rows(), tmp_path / "small.onnx")
    before = (tmp_path / "small.onnx").read_bytes()
    monkeypatch.setattr(nodes, "other_node", lambda name: "the same")
    with pytest.raises(RuntimeError, match=r"onnxruntime cannot load what was exported.*the same"):
        bb.export_onnx(small, rows(), tmp_path / "small.onnx")
    assert (tmp_path / "small.onnx").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_parameters_of_modules_that_never_run_are_not_counted():
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.never, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.used(x))

    compressor, small = deployed(Spare(), rows())
    held = sum(
        p.numel() for module in (small.integer.tensors["used.codes"], small.integer.bias("used")) for p in [module]
    )
    assert small.parameter_count == compressor.cost().parameters == held + 8
