"""Graphs as plain data: read back equal, and nothing but computing is read."""

import json

import pytest
import torch
from torch import fx

import bayesbits as bb
from bayesbits.deploy.graph_json import graph_from_data, graph_to_data


def graph_with(target, *args, **kwargs) -> fx.Graph:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(target, (x, *args), kwargs),))
    return graph


@pytest.mark.parametrize(
    "graph",
    [
        graph_with(torch.ops.aten.clamp.default, -float("inf"), 2.5),
        graph_with(torch.ops.aten._to_copy.default, dtype=torch.float32, memory_format=torch.channels_last),
        graph_with(torch.ops.aten.view.default, [-1, 4]),
        graph_with(torch.ops.aten.new_zeros.default, [2], device=torch.device("cpu"), layout=torch.strided),
    ],
)
def test_there_and_back(graph):
    data = json.loads(json.dumps(graph_to_data(graph)))
    again = graph_from_data(data)
    assert graph_to_data(again) == data
    inputs = torch.linspace(-4, 4, 16).reshape(1, 4, 2, 2)
    expected, actual = (fx.GraphModule(torch.nn.Module(), one)(inputs)[0] for one in (graph, again))
    assert torch.equal(expected, actual)
    assert expected.dtype == actual.dtype


def node(target: str, op: str = "call_function", **more) -> list:
    x = {"name": "x", "op": "placeholder", "target": "x", "args": [], "kwargs": {}}
    return [x, {"name": "y", "op": op, "target": target, "args": [], "kwargs": {}} | more]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (node("os.system"), "none of torch's own operations"),
        (node("aten.from_file.default"), "computes nothing out of tensors"),
        (node("aten.nothing_like_it.default"), "this version of torch has no operation"),
        (node("size.system"), "none of torch's own operations"),
        (node("x", op="call_method"), "which no stored graph has"),
        (node("aten.relu.default", args=[{"node": "z"}]), "a node of the graph is not one"),
        (node("aten.relu.default", args=[{"dtype": "load"}]), "a node of the graph is not one"),
        ([3], "a node of the graph is not one"),
        ({}, "a graph is a list of nodes"),
    ],
)
def test_what_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        graph_from_data(data)


@torch.library.custom_op("bayesbits_tests::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@double.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Doubled(torch.nn.Module):
    """Calls an operation of this file."""

    def forward(self, x):
        return double(x)


@pytest.mark.filterwarnings("ignore:.*none of torch's own operations")
def test_custom_operations_are_refused_with_their_module(tmp_path):
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), Doubled(), torch.nn.Linear(4, 2)), torch.ones(2, 4)
    compressor = bb.attach(model.eval(), x)
    compressor.calibrate([x])
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8))
    small = bb.deploy(compressor)
    message = "^1: bayesbits_tests::double is none of torch's own operations; .* Replace it by operations of torch"
    with pytest.raises(ValueError, match=message):
        bb.save(small, tmp_path / "small")
    with pytest.raises(ValueError, match=message):
        bb.export_onnx(small, x, tmp_path / "small.onnx")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_stored_is_named():
    with pytest.raises(ValueError, match="which is none of torch's own operations"):
        graph_to_data(graph_with(torch.nn.functional.softplus))
    with pytest.raises(ValueError, match="has an argument of type complex"):
        graph_to_data(graph_with(torch.ops.aten.mul.Tensor, 2j))
