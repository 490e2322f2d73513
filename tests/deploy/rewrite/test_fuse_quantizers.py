"""Quantizers moved into layers, on graphs of a few nodes: what lets them pass, and which codes are left."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx

from bayesbits.deploy.rewrite.fuse_quantizers import fuse_quantizers
from bayesbits.deploy.rewrite.program import EmittedCodes, Geometry, LayerNode
from bayesbits.records.integer_network import Grid
from tests.deploy.networks import deployed
from tests.deploy.rewrite.programs import program_of

aten = torch.ops.aten
GRID = Grid("b.input", 4, True, 0.5, -7, 7, 3.75)


class Chain:
    """`input -> layer a -> operations -> quantizer -> layer b -> output`, one node after another."""

    def __init__(self, layers: int = 1) -> None:
        self.graph = fx.Graph()
        self.x = self.graph.placeholder("x")
        self.layers = [self.graph.call_module(f"layers./{name}", (self.x,)) for name in "ac"[:layers]]
        self.last = self.layers[0]

    def then(self, target: Any, *more: Any, source: Any = None, **options: Any) -> "Chain":
        self.last = self.graph.call_function(target, (source or self.last, *more), options)
        self.last.meta["val"] = torch.ones(1)
        return self

    def fuse(self, grid: Grid = GRID, integer_layers: tuple[str, ...] = ("a", "c")):
        """What the layers emit, and the operations that are left."""
        quantized = self.graph.call_module("quantizers./b/input", (self.last,))
        self.graph.output(self.graph.call_module("layers./b", (quantized,)))
        program = program_of(self.graph, grids=[grid])
        for name, node in zip("ac", self.layers, strict=False):
            layer: Any = SimpleNamespace(name=name)
            reason = None if name in integer_layers else "asked for"
            program.layers.append(LayerNode(layer, Geometry(), [node], reason))
        fuse_quantizers(program)
        self.graph.lint()
        emitted = {entry.layer.name: entry.emits for entry in program.layers if entry.emits is not None}
        return emitted, [str(node.target) for node in self.graph.nodes if node.op.startswith("call")]


def test_a_quantizer_goes_into_the_layer_before_it():
    emitted, left = Chain().fuse()
    assert emitted == {"a": EmittedCodes("b.input", -7, 7)}
    assert left == ["layers./a", "layers./b"]


def test_what_does_not_emit_codes():
    assert Chain().fuse(integer_layers=("c",)) == ({}, ["layers./a", "quantizers./b/input", "layers./b"])
    wide = Grid("b.input", 16, True, 0.5, -32767, 32767, 1.0)
    assert Chain().fuse(wide)[0] == {}
    chain = Chain()
    chain.graph.call_function(aten.neg.default, (chain.last,))
    assert chain.fuse()[0] == {}  # another reader needs the numbers
    chain = Chain()
    chain.last = chain.x
    assert chain.fuse()[0] == {}


@pytest.mark.parametrize(
    ("functions", "emits"),
    [
        ([aten.relu.default, aten.relu.default], EmittedCodes("b.input", 0, 7)),
        ([aten.relu.default, aten.alias.default], None),  # the two calls would emit other codes
        ([aten.relu.default, aten.neg.default], None),  # the second call emits none
        ([aten.neg.default, aten.relu.default], None),
        ([aten.relu.default, None], None),  # numbers of the second call leave the network
    ],
)
def test_a_layer_that_runs_twice_emits_codes_if_both_calls_emit_the_same(functions, emits):
    graph = fx.Graph()
    x = graph.placeholder("x")
    calls = [graph.call_module("layers./a", (x,)) for _ in functions]
    outputs = []
    for call, function in zip(calls, functions, strict=True):
        if function is not None:
            between = graph.call_function(function, (call,))
            between.meta["val"] = torch.ones(1)
            call = graph.call_module("layers./b", (graph.call_module("quantizers./b/input", (between,)),))
        outputs.append(call)
    graph.output(tuple(outputs))
    program = program_of(graph, grids=[GRID])
    layer: Any = SimpleNamespace(name="a")
    program.layers.append(LayerNode(layer, Geometry(), calls))
    fuse_quantizers(program)
    graph.lint()
    assert program.layers[0].emits == emits
    left = [node for node in graph.nodes if str(node.target).startswith("quantizers")]
    assert len(left) == (0 if emits else len([function for function in functions if function is not None]))


@pytest.mark.parametrize(
    ("target", "more", "bounds"),
    [
        (aten.relu.default, (), (0, 7)),
        (aten.relu6.default, (), (0, 7)),
        (aten.hardtanh.default, (), (-2, 2)),
        (aten.hardtanh.default, (-1.5, 2.5), (-3, 5)),
        (aten.clamp.default, (-1.0, 2.0), (-2, 4)),
        (aten.clamp.default, (None, 2.0), (-7, 4)),
        (aten.clamp.default, (-1.0,), (-2, 7)),
        (aten.clamp.default, (0.0, 0.0), (0, 0)),
        (aten.clamp_min.default, (-2.0,), (-4, 7)),
        (aten.clamp.default, (1.0, 2.0), None),
        (aten.clamp.default, (-2.0, -1.0), None),
        (aten.leaky_relu.default, (0.1,), None),
    ],
)
def test_clipping_around_zero_becomes_bounds_of_the_codes(target, more, bounds):
    emitted, left = Chain().then(target, *more).fuse()
    if bounds is None:
        assert emitted == {}
        assert left[-2:] == ["quantizers./b/input", "layers./b"]
    else:
        assert emitted == {"a": EmittedCodes("b.input", *bounds)}
        assert left == ["layers./a", "layers./b"]


def test_a_bound_of_six_is_a_code_where_the_grid_goes_further():
    fine = Grid("b.input", 8, False, 0.05, 0, 255, 12.75)
    assert Chain().then(aten.relu6.default).fuse(fine)[0] == {"a": EmittedCodes("b.input", 0, 120)}
    assert Chain().then(aten.relu.default).fuse(fine)[0] == {"a": EmittedCodes("b.input", 0, 255)}


def test_two_bounds_are_both_kept():
    emitted, _ = Chain().then(aten.clamp.default, -1.0, 3.0).then(aten.clamp.default, -2.0, 1.0).fuse()
    assert emitted == {"a": EmittedCodes("b.input", -2, 2)}


def test_a_computed_bound_stays():
    chain = Chain()
    low = chain.graph.call_function(aten.neg.default, (chain.x,))
    assert chain.then(aten.clamp.default, low, 1.0).fuse()[0] == {}


@pytest.mark.parametrize(
    ("target", "more", "passes"),
    [
        (aten.view.default, ([1, 4],), True),
        (aten.clone.default, (), True),
        (aten.max_pool2d.default, ([2, 2],), True),
        (aten.amax.default, ([2, 3],), True),
        (aten.constant_pad_nd.default, ([1, 1],), True),
        (aten.constant_pad_nd.default, ([1, 1], 0.0), True),
        (aten.constant_pad_nd.default, ([1, 1], 1.0), False),
        (aten.pad.default, ([1, 1], "constant"), True),
        (aten.pad.default, ([1, 1], "constant", 0.0), True),
        (aten.pad.default, ([1, 1], "constant", 2.0), False),
        (aten.pad.default, ([1, 1], "reflect"), False),
        (aten.avg_pool2d.default, ([2, 2],), False),
        (aten.neg.default, (), False),
    ],
)
def test_what_moves_data_or_takes_maxima_lets_a_quantizer_pass(target, more, passes):
    emitted, left = Chain().then(target, *more).fuse()
    assert bool(emitted) == passes
    assert ("quantizers./b/input" in left) != passes
    assert str(target) in left


def test_operations_of_several_tensors_or_results_do_not_let_it_pass():
    chain = Chain()
    assert chain.then(aten.type_as.default, chain.x).fuse()[0] == {}
    chain = Chain().then(aten.max_pool2d.default, [2, 2])
    chain.last.meta["val"] = [torch.ones(1), torch.ones(1)]
    assert chain.fuse()[0] == {}


def test_positions_and_sizes_are_no_tensors_of_their_own():
    chain = Chain()
    positions = chain.graph.get_attr("positions")
    assert chain.then(aten.index_select.default, 1, positions).fuse()[0]
    chain = Chain()
    size = chain.graph.call_function(aten.sym_size.int, (chain.x, 0))
    assert chain.then(aten.view.default, [size, 4]).fuse()[0]


def test_a_concatenation_passes_it_to_all_of_its_parts_or_to_none():
    for integer_layers, expected in ((("a", "c"), {"a", "c"}), (("a",), set())):
        chain = Chain(layers=2)
        chain.then(aten.relu.default, source=chain.layers[1])
        chain.last = chain.graph.call_function(aten.cat.default, ([chain.layers[0], chain.last], 1))
        emitted, left = chain.fuse(integer_layers=integer_layers)
        assert emitted.keys() == expected
        assert any("relu" in name for name in left) != bool(expected)
        if expected:
            assert emitted == {"a": EmittedCodes("b.input", -7, 7), "c": EmittedCodes("b.input", 0, 7)}


@pytest.mark.parametrize(
    ("target", "averages"),
    [(aten.mean.dim, True), (aten.upsample_bilinear2d.vec, True), (aten.sum.dim_IntList, False)],
)
def test_averages_and_interpolations_are_taken_of_codes(target, averages):
    graph = fx.Graph()
    codes = graph.call_module("quantizers./a", (graph.placeholder("x"),))
    numbers = graph.call_module("dequantizers./a", (codes,))
    first = graph.call_function(target, (numbers, [2]))
    graph.output((graph.call_function(aten.neg.default, (first,)), graph.call_function(aten.exp.default, (numbers,))))
    fuse_quantizers(program_of(graph))
    graph.lint()
    assert first.args[0] is (codes if averages else numbers)
    (reader,) = first.users
    assert str(reader.target) == ("dequantizers./a" if averages else "aten.neg.default")
    assert [str(user.target) for user in reader.users] == ["aten.neg.default"] * averages or not averages


def test_averages_of_numbers_stay_behind_the_layer_that_made_them():
    chain = Chain().then(aten.mean.dim, [2])
    emitted, left = chain.fuse()
    assert emitted == {}
    assert left == ["layers./a", "aten.mean.dim", "quantizers./b/input", "layers./b"]


def test_one_relu_becomes_a_bound_and_max_pool_works_on_codes():
    _, small, _ = deployed("lenet5")
    operations = {str(node.target) for node in small.program.graph.nodes if node.op == "call_function"}
    assert not any("relu" in name for name in operations)
    assert any("max_pool2d" in name for name in operations)
    assert [layer.output for layer in small.integer.layers] == [
        "features.3.input", "classifier.1.input", "classifier.3.input", None
    ]  # fmt: skip


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(
    ("change", "taken"), [({}, True), ({"step": 0.25}, False), ({"low": -8}, False), ({"signed": False}, False)]
)
def test_codes_on_an_equal_grid_are_not_rounded_again(joined, change, taken):
    chain = Chain()
    codes = chain.graph.call_module("quantizers./n/output", (chain.x,))
    numbers = chain.graph.call_module("dequantizers./n/output", (codes,))
    chain.last = numbers
    if joined:
        chain.then(aten.cat.default, source=[numbers, chain.layers[0]])
    quantized = chain.graph.call_module("quantizers./b/input", (chain.last,))
    chain.graph.output((chain.graph.call_module("layers./b", (quantized,)), numbers))
    program = program_of(chain.graph, grids=[GRID, replace(GRID, name="n.output", **change)])
    layer: Any = SimpleNamespace(name="a")
    program.layers.append(LayerNode(layer, Geometry(), [chain.layers[0]], None))
    fuse_quantizers(program)
    chain.graph.lint()
    left = [str(node.target) for node in chain.graph.nodes if node.op == "call_module"]
    assert ("quantizers./b/input" in left) is not taken
    assert "dequantizers./n/output" in left  # the network returns these numbers
    assert (program.layers[0].emits is not None) is (joined and taken)


def test_codes_on_an_equal_grid_are_rounded_again_where_a_clip_lies_between():
    chain = Chain()
    codes = chain.graph.call_module("quantizers./n/output", (chain.x,))
    chain.then(aten.relu.default, source=chain.graph.call_module("dequantizers./n/output", (codes,)))
    quantized = chain.graph.call_module("quantizers./b/input", (chain.last,))
    chain.graph.output(chain.graph.call_module("layers./b", (quantized,)))
    fuse_quantizers(program_of(chain.graph, grids=[GRID, replace(GRID, name="n.output")]))
    assert "quantizers./b/input" in [str(node.target) for node in chain.graph.nodes]


@pytest.mark.parametrize(("number", "before"), [(0.0, True), (1.0, False)])
def test_a_quantizer_moves_in_front_of_padding_with_zeros(number, before):
    chain = Chain()
    chain.then(aten.silu.default).then(aten.constant_pad_nd.default, [1, 0], number)
    _, left = chain.fuse()
    quantizer, padding = left.index("quantizers./b/input"), left.index("aten.constant_pad_nd.default")
    assert (quantizer < padding) is before
    assert left[-1] == "layers./b"
