"""Dynamic shapes of deployed networks: as users give them, in calls and files, and what is said about fixed ones."""

from dataclasses import dataclass

import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import bayesbits as bb
from bayesbits.deploy.dynamic_shapes import read_dynamic_shapes
from bayesbits.records.integer_network import Argument
from bayesbits.utils.pytree import describe


@dataclass
class Scores:
    logits: Tensor
    hidden: Tensor


class Encoder(nn.Module):
    """Embeds tokens and positions, mixes them by attention, and returns scores of its own class."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(20, 8), nn.Parameter(torch.randn(12, 8))
        self.query, self.value, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Scores:
        x = self.words(input_ids) + self.positions[: input_ids.shape[1]]
        weights = (self.query(x) @ x.transpose(1, 2)).masked_fill(attention_mask[:, None] == 0, -1e4).softmax(-1)
        hidden = torch.relu(self.value(weights @ x))
        return Scores(self.head(hidden.mean(1)), hidden)


def inputs(batch: int, length: int) -> dict[str, Tensor]:
    tokens = torch.arange(batch * length).reshape(batch, length) % 20
    return {"input_ids": tokens, "attention_mask": (tokens > 1).long()}


@pytest.fixture(scope="module")
def compressor():
    torch.manual_seed(0)
    example = dict(reversed(inputs(3, 8).items()))
    compressor = bb.attach(Encoder().eval(), example, bb.Spec(bits=(8,), prune=False))
    compressor.calibrate([inputs(3, 8)])
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8))
    return compressor


def test_lengths_change_in_network_and_file_and_are_verified(compressor, tmp_path):
    small = bb.deploy(compressor)
    assert [str(size) for size in small.integer.structure.sizes] == ["any batch", "length of 1 to 12"]
    assert "takes input_ids: batch x length (any batch, length of 1 to 12)" in str(small)
    bb.save(small, tmp_path / "small")
    again = bb.load(tmp_path / "small", Encoder())
    bb.export_onnx(again, inputs(3, 8), tmp_path / "small.onnx")
    graph = onnx.load(tmp_path / "small.onnx").graph
    assert [d.dim_param for d in graph.input[0].type.tensor_type.shape.dim] == ["batch", "length"]
    for batch, length in ((3, 8), (1, 1), (2, 12)):
        found = bb.verify(compressor, again, tmp_path / "small.onnx", inputs(batch, length))
        assert found.failure is None
        scores = again(**inputs(batch, length))
        assert type(scores) is Scores
        assert scores.hidden.shape == (batch, length, 8)
        assert torch.equal(scores.logits, again(*inputs(batch, length).values()).logits)
    program = small.export_program()
    assert program.module()(*inputs(2, 5).values())["logits"].shape == (2, 3)
    assert type(small(**inputs(2, 5))) is Scores


def test_calls_of_other_sizes_are_refused(compressor):
    small = bb.deploy(compressor)
    with pytest.raises(ValueError, match="'input_ids' has the shape 1 x 13, and the network takes batch x length"):
        small(**inputs(1, 13))
    mixed = {"input_ids": inputs(2, 4)["input_ids"], "attention_mask": inputs(2, 5)["attention_mask"]}
    with pytest.raises(ValueError, match="has a length of 5, and 'input_ids' one of 4"):
        small(**mixed)


def test_no_size_changes_where_none_is_asked_for(compressor):
    small = bb.deploy(compressor, dynamic_shapes=None)
    assert small.integer.structure.sizes == ()
    assert not small.integer.structure.dynamic_batch
    assert "input_ids has the fixed size 8: dynamic_shapes leaves it fixed" in small.shapes()
    assert small(**inputs(3, 8)).logits.shape == (3, 3)
    with pytest.raises(ValueError, match="the network takes 3 x 8"):
        small(**inputs(2, 8))


def test_sizes_are_those_that_are_asked_for(compressor, tmp_path):
    words = Dim("words", min=2, max=10)  # the example inputs may be in another order than the arguments
    small = bb.deploy(compressor, dynamic_shapes={"input_ids": {1: words}, "attention_mask": {1: words}})
    (size,) = small.integer.structure.sizes
    assert (size.name, size.places, size.high) == ("words", ((0, 1), (1, 1)), 10)
    assert small(**inputs(3, 5)).hidden.shape == (3, 5, 8)
    bb.export_onnx(small, inputs(3, 8), tmp_path / "small.onnx")
    assert bb.verify(compressor, small, tmp_path / "small.onnx", inputs(6, 5)).simulated.inputs == 2, "two calls"


def arguments() -> list[Argument]:
    tensors: list[Tensor] = []
    forms = [describe(value, tensors) for value in (torch.ones(2), {"a": torch.ones(2), "b": [torch.ones(1)]}, True)]
    return [Argument(name, form, "either", False) for name, form in zip(("x", "more", "flag"), forms, strict=True)]


def test_dynamic_shapes_follow_the_containers():
    assert read_dynamic_shapes("auto", arguments()) is None
    assert read_dynamic_shapes(False, arguments()) == {}
    nested = {"x": (Dim.AUTO,), "more": {"a": {0: Dim.AUTO}, "b": [{0: Dim.DYNAMIC}]}}
    expected = {(0, 0): Dim.AUTO, (1, 0): Dim.AUTO, (2, 0): Dim.DYNAMIC}
    assert read_dynamic_shapes(nested, arguments()) == expected
    assert read_dynamic_shapes((None, nested["more"]), arguments()) == {(1, 0): Dim.AUTO, (2, 0): Dim.DYNAMIC}


@pytest.mark.parametrize(
    ("shapes", "error", "match"),
    [
        (3, TypeError, "dynamic_shapes is a int"),
        ({"y": {}}, ValueError, "names y; the network takes x, more, flag"),
        ({"x": 3}, TypeError, r"dynamic_shapes\['x'\] is a int"),
        ({"more": {"c": {0: Dim.AUTO}}}, ValueError, "names c, which the argument does not hold"),
        ({"more": [None]}, TypeError, "does not have the containers"),
        ((None,) * 4, ValueError, "has 4 entries"),
    ],
)
def test_other_forms_are_refused(shapes, error, match):
    with pytest.raises(error, match=match):
        read_dynamic_shapes(shapes, arguments())


def test_sizes_of_images_change_where_all_sizes_are_asked_for(tmp_path):
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
    images = torch.randn(2, 3, 8, 8)
    compressor = bb.attach(nn.Sequential(*layers).eval(), images, bb.Spec(bits=(8,), prune=False))
    compressor.calibrate([images])
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8))
    small = bb.deploy(compressor)
    assert [size.name for size in small.integer.structure.sizes] == ["batch"]
    assert any('dynamic_shapes leaves it fixed; dynamic_shapes="all" would not' in line for line in small.shapes())
    small = bb.deploy(compressor, dynamic_shapes="all")
    assert [size.name for size in small.integer.structure.sizes] == ["batch", "height", "width"]
    bb.export_onnx(small, images, tmp_path / "small.onnx")
    for shape in ((2, 3, 8, 8), (1, 3, 12, 5)):
        assert bb.verify(compressor, small, tmp_path / "small.onnx", torch.randn(shape)).failure is None
