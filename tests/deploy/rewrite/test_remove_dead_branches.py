"""Branches of zeros are removed with their layers; zeros that something else reads stay."""

from types import SimpleNamespace

import pytest
import torch
from torch import fx

import bayesbits as bb
from bayesbits.deploy.rewrite.program import Geometry, LayerNode
from bayesbits.deploy.rewrite.remove_dead_branches import remove_dead_branches
from tests.deploy.comparison import check_equal, mixed_plan
from tests.deploy.networks import SPEC, make
from tests.deploy.rewrite.programs import program_of

aten = torch.ops.aten


def test_a_branch_that_vanished_goes():
    model, inputs = make("residual")
    compressor = bb.attach(model.eval(), inputs, SPEC)
    compressor.calibrate([inputs])
    bits = mixed_plan(compressor.topology).bits | {"outer.weight": 0}
    compressor.fix(bb.Plan(bits, {"outer": ()}))
    small = bb.deploy(compressor)
    assert [layer.name for layer in small.integer.layers] == ["stem", "head"]
    check_equal(compressor, small, inputs)


def branch(*operations, zero=("branch",), norm=None, add=aten.add.Tensor, shapes=((2, 3), (2, 3)), **options):
    """The operations that are left of `x + operations(branch(x))`, and the layers."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    emitted = graph.call_module("layers./branch", (x,))
    layers = [LayerNode(SimpleNamespace(name="branch", instance_norm=norm), Geometry(), [emitted])]
    for operation in operations:
        emitted = graph.call_function(operation, (emitted,))
    total = graph.call_function(add, (x, emitted), options)
    graph.output((total,))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(shapes[1])
    x.meta["val"] = torch.empty(shapes[0])
    program = program_of(graph, zero=zero, layers=layers)
    remove_dead_branches(program)
    graph.lint()
    assert program.node_of[total] is (x if not program.layers else total)
    return [str(node.target) for node in graph.nodes if node.op.startswith("call")], len(program.layers)


@pytest.mark.parametrize("operations", [(), (aten.relu.default,), (aten.amax.default, aten.clone.default)])
def test_an_addition_of_zeros_is_its_other_operand(operations):
    assert branch(*operations) == ([], 0)


def test_an_instance_norm_emits_zeros_only_where_it_has_the_gate():
    assert branch(aten.instance_norm.default, norm="norm") == ([], 0)
    assert branch(aten.instance_norm.default)[1] == 1


def test_branches_that_stay():
    whole = ["layers./branch", "aten.add.Tensor"]
    assert branch(zero=()) == (whole, 1)
    assert branch(aten.exp.default) == (["layers./branch", "aten.exp.default", "aten.add.Tensor"], 1)
    assert branch(add=aten.mul.Tensor) == (["layers./branch", "aten.mul.Tensor"], 1)
    assert branch(alpha=2) == (whole, 1)
    assert branch(shapes=((1, 3), (2, 3))) == (whole, 1)  # zeros that broadcast the other operand


def test_an_addition_of_two_branches_of_zeros_is_zero():
    graph = fx.Graph()
    x = graph.placeholder("x")
    calls = [graph.call_module(f"layers./{name}", (x,)) for name in "ab"]
    inner = graph.call_function(aten.add.Tensor, tuple(calls))
    graph.output((graph.call_function(aten.add.Tensor, (inner, x)),))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(2)
    named = [SimpleNamespace(name=name, instance_norm=None) for name in "ab"]
    layers = [LayerNode(layer, Geometry(), [call]) for layer, call in zip(named, calls, strict=True)]
    program = program_of(graph, zero="ab", layers=layers)
    remove_dead_branches(program)
    assert program.layers == []
    assert [node.op for node in graph.nodes] == ["placeholder", "output"]
