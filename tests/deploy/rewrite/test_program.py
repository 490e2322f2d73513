"""The program that passes rewrite."""

import torch
from torch import fx

from tests.deploy.rewrite.programs import program_of


def test_what_nothing_reads_is_erased_with_what_only_it_reads():
    graph = fx.Graph()
    x, unread = graph.placeholder("x"), graph.placeholder("unread")
    first = graph.call_function(torch.ops.aten.neg.default, (x,))
    graph.call_function(torch.ops.aten.relu.default, (first,))
    result = graph.call_function(torch.ops.aten.exp.default, (x,))
    graph.output((result,))
    program = program_of(graph)
    program.erase_unread()
    assert [node.name for node in graph.nodes] == [x.name, unread.name, result.name, "output"]


def test_twins_lead_back():
    graph, twin_graph = fx.Graph(), fx.Graph()
    node, twin = graph.placeholder("x"), twin_graph.placeholder("x")
    assert program_of(graph, node_of={twin: node}).twins() == {node: twin}
