"""Symbols of torch.export: marks, names, and where an export is given up."""

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import bayesbits.graph.symbolic_sizes as symbolic_sizes
from bayesbits.graph.export import export_flat
from bayesbits.graph.flat_network import FlatNetwork
from bayesbits.graph.symbolic_sizes import early_stop, find_symbols, mark_sizes, name_sizes, run_exported


def test_marked_sizes_of_one_are_doubled():
    examples = (torch.zeros(1, 3), torch.zeros(2, 3), torch.zeros(()))
    several, marks = mark_sizes(examples, {(0, 0): Dim.AUTO, (1, 1): Dim.AUTO})
    assert [tuple(x.shape) for x in several] == [(2, 3), (2, 3), ()]  # torch.export takes a size of 1 for a constant
    assert [None if mark is None else list(mark) for mark in marks] == [[0], [1], None]


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 2, 1)

    def forward(self, image: Tensor, other: Tensor) -> Tensor:
        return self.layer(image) + self.layer(other).mean((2, 3), keepdim=True)


def exported_sum():
    flat = FlatNetwork(Sum(), (torch.randn(2, 3, 4, 6), torch.randn(2, 3, 5, 7)), {})
    marks = {(number, dim): Dim.AUTO for number in (0, 1) for dim in (0, 1, 2, 3)}
    return export_flat(flat, *mark_sizes(flat.examples(), marks))[0], flat, marks


def test_sizes_have_names_of_their_own_and_inputs_share_them():
    exported, flat, marks = exported_sum()
    sizes = name_sizes(exported, marks, flat.examples(), {(0, 0): 2}, {(0, 3): 4}, {(0, 2): (0, 2), (1, 2): (0, 2)})
    names = {size.name: (size.places, size.low, size.multiple) for size in sizes}
    assert names["batch"] == (((0, 0), (1, 0)), 2, 1)
    assert names["width"] == (((0, 3),), 1, 4)
    assert names["height"][0] == ((0, 2), (1, 2)), "they were joined"
    assert set(names) == {"batch", "height", "width", "width_2"}
    assert (0, 1) not in find_symbols(exported), "a convolution fixes its channels"


def test_an_exported_graph_runs_at_other_sizes():
    exported, flat, _ = exported_sum()
    inputs = [torch.randn(1, 3, 9, 2), torch.randn(1, 3, 3, 3)]
    (found,) = run_exported(exported, inputs)
    torch.testing.assert_close(found, flat(*inputs)[0])


def test_too_long_expressions_stop_the_export(monkeypatch):
    monkeypatch.setattr(symbolic_sizes, "LONGEST_EXPRESSION", 0)
    flat = FlatNetwork(nn.Sequential(nn.Conv2d(3, 2, 3, stride=2), nn.ReLU()), (torch.randn(2, 3, 8, 8),), {})
    marks = {(0, 2): Dim.AUTO}
    with early_stop(flat.network, {(0, 2): 4}), pytest.raises(RuntimeError, match="too long to export"):
        export_flat(flat, *mark_sizes(flat.examples(), marks))
    assert not any(module._forward_pre_hooks for module in flat.modules())
