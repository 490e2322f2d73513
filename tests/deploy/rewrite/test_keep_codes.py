"""Tensors that are split, shuffled and concatenated stay codes where every quantizer that reads them has their grid."""

import operator
from collections import Counter
from dataclasses import replace
from typing import Any

import onnx
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn

import bayesbits as bb
from bayesbits.deploy.onnx.runtime import operation_counts
from bayesbits.deploy.rewrite.keep_codes import keep_codes
from bayesbits.graph.exported_program import operation
from bayesbits.records.integer_network import Grid
from tests.deploy.rewrite.programs import program_of
from tests.graph.networks import randomize

aten = torch.ops.aten
GRID = Grid("b.input", 8, False, 0.5, 0, 255, 127.5)


class Halves:
    """`a -> clip -> split`; one half goes to the quantizer of b, the other one, beside codes c, to the one of d."""

    def __init__(self, clip: Any = (aten.relu.default,)) -> None:
        self.graph = graph = fx.Graph()
        first, second = (self._numbers(name) for name in "ac")
        self.clip = graph.call_function(clip[0], (first, *clip[1:]))
        split = graph.call_function(aten.split.Tensor, (self.clip, 2, 1))
        self.halves = [graph.call_function(operator.getitem, (split, index)) for index in (0, 1)]
        self.cat = graph.call_function(aten.cat.default, ([self.halves[0], second], 1))
        for node in (self.clip, *self.halves, self.cat):
            node.meta["val"] = torch.ones(1)
        split.meta["val"] = [torch.ones(1)]
        self.outputs = []
        for name, node in (("b", self.halves[1]), ("d", self.cat)):
            codes = graph.call_module(f"quantizers./{name}/input", (node,))
            self.outputs.append(graph.call_module(f"layers./{name}", (codes,)))

    def _numbers(self, name: str) -> fx.Node:
        codes = self.graph.call_module(f"quantizers./{name}/output", (self.graph.placeholder(name),))
        return self.graph.call_module(f"dequantizers./{name}/output", (codes,))

    def left(self, **changed: Grid) -> Counter[str]:
        """What is left of the modules and operations; `changed` are grids that differ from the others."""
        self.graph.output(tuple(self.outputs))
        names = {"a": "a.output", "b": "b.input", "c": "c.output", "d": "d.input"}
        grids = [replace(changed.get(one, GRID), name=name) for one, name in names.items()]
        keep_codes(program_of(self.graph, grids=grids))
        self.graph.lint()
        return Counter(
            str(node.target).split(".")[0] if node.op == "call_module" else operation(node)
            for node in self.graph.nodes
            if node.op.startswith("call")
        )


def test_codes_take_the_whole_way_from_quantizers_to_layers() -> None:
    halves = Halves()
    left = halves.left()
    assert left == {"quantizers": 2, "split": 1, "getitem": 2, "cat": 1, "layers": 2}
    assert [layer.args[0] for layer in halves.outputs] == [halves.halves[1], halves.cat]


@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        ({"d": replace(GRID, step=0.25)}, False),
        ({"b": replace(GRID, step=0.25)}, False),  # the other half alone would need codes and numbers of one tensor
        ({"c": replace(GRID, high=254)}, False),
        ({}, True),
    ],
)
def test_one_other_grid_makes_numbers_of_all(changed: dict[str, Grid], kept: bool) -> None:
    left = Halves().left(**changed)
    assert ("dequantizers" not in left) is kept
    assert "relu" not in left  # which changes nothing in any case


@pytest.mark.parametrize(
    ("clip", "kept"),
    [
        ((aten.relu.default,), True),
        ((aten.hardtanh.default, 0.0, 127.5), True),
        ((aten.hardtanh.default, 0.0, 127.0), False),
        ((aten.hardtanh.default, 1.0, 200.0), False),
        ((aten.silu.default,), False),
    ],
)
def test_a_function_that_changes_a_code_needs_numbers(clip: Any, kept: bool) -> None:
    assert ("dequantizers" not in Halves(clip).left()) is kept


def test_a_relu_behind_codes_below_zero_needs_numbers() -> None:
    signed = replace(GRID, signed=True, low=-127, high=127)
    left = Halves().left(a=signed, b=signed, c=signed, d=signed)
    assert (left["relu"], left["dequantizers"]) == (1, 2)


def test_a_reader_of_numbers_keeps_all_of_them() -> None:
    halves = Halves()
    halves.outputs.append(halves.graph.call_function(aten.exp.default, (halves.cat,)))
    left = halves.left()
    assert left["dequantizers"] == 2
    assert left["quantizers"] == 4


class Shuffle(nn.Module):
    """Units as in ShuffleNetV2, with one module for every ReLU: half of the channels passes, and all are shuffled."""

    def __init__(self, units: int = 2, pool: bool = False, groups: int = 2) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.relu, self.groups = nn.ReLU(), groups
        self.pool = nn.MaxPool2d(2) if pool else nn.Identity()
        self.layers = nn.ModuleList(nn.Conv2d(4, 4, 1, bias=False) for _ in range(units))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(units))
        self.last, self.head = nn.Conv2d(8, 4, 1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.norm(self.stem(x))))
        for layer, norm in zip(self.layers, self.norms, strict=True):
            kept, changed = x.chunk(2, dim=1)
            x = torch.cat((kept, self.relu(norm(layer(changed)))), dim=1)
            batch, channels, height, width = x.shape
            x = x.view(batch, self.groups, channels // self.groups, height, width).transpose(1, 2).reshape(x.shape)
        return self.head(self.relu(self.last(x)).mean((2, 3)))


def proven(model: nn.Module, path: Any, stretch: float = 1.0) -> tuple[bb.DeployedNetwork, Counter[str]]:
    """The network at 8/8, verified, and the operations of its file; one range is stretched as training would."""
    torch.manual_seed(0)
    inputs = torch.randn(8, 3, 8, 8)
    compressor = bb.attach(randomize(model).eval(), inputs[:1], bb.Spec.for_backend("onnxruntime"))
    compressor.calibrate([inputs])
    quantizer = compressor.attachment.quantizers["norms.0.output"]
    quantizer.set_range(quantizer.beta.detach() * stretch)
    compressor.fix(bb.Plan.uniform(compressor.topology, residual_bits=8))
    small = bb.deploy(compressor)
    bb.export_onnx(small, inputs[:1], path)
    found = bb.verify(compressor, small, path, 1.5 * inputs)
    assert found.wrong == ()
    assert all(tensor.differing == tensor.differing_end_to_end == 0 for tensor in found.runtime_tensors if tensor.exact)
    return small, Counter(node.op_type for node in onnx.load(path).graph.node)


def test_shuffled_channels_are_never_numbers(tmp_path: Any) -> None:
    small, _ = proven(Shuffle(), tmp_path / "network.onnx")
    targets = [str(node.target) for node in small.program.graph.nodes if node.op == "call_module"]
    assert sum(target.startswith("quantizers") for target in targets) == 2  # of the image, and in front of the head
    assert not any("relu" in str(node.target) for node in small.program.graph.nodes)
    kernels = operation_counts(tmp_path / "network.onnx")
    assert kernels["QLinearConv"] == 4
    assert "Relu" not in kernels
    assert kernels["QuantizeLinear"] == 2


def test_ranges_that_training_has_moved_apart_are_rounded_again(tmp_path: Any) -> None:
    small, operations = proven(Shuffle(), tmp_path / "network.onnx", stretch=0.7)
    assert operations["Relu"] == 0
    numbers = [node for node in small.program.graph.nodes if str(node.target).startswith("dequantizers")]
    assert len(numbers) == 4  # of the stem, of both units, and in front of the mean


@settings(max_examples=2, deadline=None, derandomize=True, phases=[Phase.generate])
@given(units=st.integers(1, 4), pool=st.booleans(), groups=st.sampled_from((2, 4)), stretch=st.sampled_from((1.0, 0.9)))
def test_shuffled_networks_are_equal(
    tmp_path_factory: Any, units: int, pool: bool, groups: int, stretch: float
) -> None:
    proven(Shuffle(units, pool, groups), tmp_path_factory.mktemp("shuffled") / "network.onnx", stretch)
