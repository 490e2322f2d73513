"""The arguments of operations by name, and names of pooling operations."""

import torch
from torch import fx

from bayesbits.graph.exported_program import arguments
from bayesbits.graph.operations import AVERAGES, MAXIMA

aten = torch.ops.aten


def test_arguments_have_names_and_defaults():
    graph = fx.Graph()
    x = graph.placeholder("x")
    part = graph.call_function(aten.slice.Tensor, (x, 1), {"end": 3})
    assert arguments(part) == {"self": x, "dim": 1, "start": None, "end": 3, "step": 1}
    assert arguments(graph.call_function(aten.hardtanh.default, (x,))) == {"self": x, "min_val": -1, "max_val": 1}


def test_maxima_and_averages_are_told_apart_by_their_whole_names():
    names = ["max_pool2d", "amax", "avg_pool1d", "adaptive_avg_pool3d", "mean", "adaptive_max_pool2d", "means", "max"]
    assert [name for name in names if MAXIMA.fullmatch(name)] == ["max_pool2d", "amax"]
    assert [name for name in names if AVERAGES.fullmatch(name)] == ["avg_pool1d", "adaptive_avg_pool3d", "mean"]
