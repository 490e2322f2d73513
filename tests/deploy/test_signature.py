"""The deployed network, its folder and its file take and return what the float network takes and returns."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import bayesbits as bb
from tests.deploy.calls import BATCH, Taking, check_call, deploy_uniformly, rows, run


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
    assert check_call(Returning(make), rows(), tmp_path)[1] == outputs


@pytest.mark.parametrize("flags", [{}, {"flag": False, "mode": "shifted"}])
def test_nested_inputs_flags_and_any_names(flags, tmp_path):
    inputs = {"zeta": rows(3), **flags, "batch": BATCH, "alpha": rows(4)}
    names, _ = check_call(Taking(), inputs, tmp_path)
    assert names == ["batch.image", "batch.others.0", "zeta", "alpha"]


def test_another_flag_or_another_container_is_refused():
    inputs = {"batch": BATCH, "flag": False, "zeta": rows(3), "alpha": rows(4)}
    _, small = deploy_uniformly(Taking(), inputs)
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
    assert check_call(Two(), (x, x), tmp_path)[0] == ["left", "rest.0"]
    _, small = deploy_uniformly(Two(), (x, x))
    other = rows(5)
    bb.export_onnx(small, (x, x), tmp_path / "twice.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "twice.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"left": x.numpy(), "rest.0": other.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), run(small, (x, other)), rtol=1e-5, atol=1e-6)


class Choosing(nn.Module):
    """Takes any function and any dtype, and returns what it is told to."""

    def __init__(self, make: Callable[[Tensor], Any] = lambda y: y) -> None:
        super().__init__()
        self.layer, self.make = nn.Linear(4, 2), make

    def forward(self, x: Tensor, activation: Any = torch.relu, kind: Any = torch.float32) -> Any:
        return self.make(activation(self.layer(x)).to(kind))


def test_what_can_never_be_given_again_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"with <function .* as activation, .*To fix this: make it the default"):
        deploy_uniformly(Choosing(), (rows(), lambda x: -x))
    _, small = deploy_uniformly(Choosing(), {"x": rows()})  # a default may be left out
    run(small, {"x": rows()})
    compressor, small = deploy_uniformly(Choosing(), {"x": rows(), "kind": torch.float64})
    bb.save(small, tmp_path / "small")
    with pytest.raises(ValueError, match=r"takes an object as kind, whose class is not stored.*To fix this"):
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
    assert check_call(model, rows(), tmp_path) == (["input"], ["output"])


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
    check_call(Slashes(), rows(), tmp_path)


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
    check_call(Shuffle(), torch.randn(2, 3, 5), tmp_path, bits=4)


def test_an_image_without_a_batch(tmp_path):
    last = nn.ConvTranspose2d(4, 2, 2, stride=2)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 1), nn.ReLU(), last)
    check_call(model, torch.randn(3, 8, 8), tmp_path)


def test_examples_in_double_and_half_precision(tmp_path):
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    check_call(model, rows().double(), tmp_path)
    model.float()
    _, small = deploy_uniformly(model, rows())
    bb.export_onnx(small, rows().half(), tmp_path / "half.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "half.onnx"), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].type == "tensor(float)"
