"""Sizes and positions of operations, corrected by hand for a dimension of five channels without 1 and 2."""

import pytest
import torch
from torch import fx

from bayesbits.deploy.rewrite.size_arguments import (
    correct_pad,
    correct_slice,
    correct_split,
    correct_unflatten,
    correct_view,
    squeezes_the_same,
)

aten = torch.ops.aten
MASK = torch.tensor([True, False, False, True, True])
SOURCE = (None, MASK)


def node(target, *args, **kwargs) -> fx.Node:
    graph = fx.Graph()
    return graph.call_function(target, (graph.placeholder("x"), *args), kwargs)


def test_views_have_the_sizes_that_remain():
    view = node(aten.view.default, [-1, 5, 7])
    source = view.args[0]
    assert correct_view(view, (None, MASK, None))
    assert view.args == (source, [-1, 3, 7])
    view = node(aten.view.default, [-1, 7])
    assert correct_view(view, (MASK, None))
    assert view.args[1] == [-1, 7]  # torch computes this size
    view = node(aten.view.default, [2, 5, 7])
    view.args = (view.args[0], [2, size := view.graph.placeholder("size"), 7])
    assert correct_view(view, (None, MASK, None))
    assert view.args[1] == [2, -1, 7]  # nor is that of channels and batch together computed here
    view.args = (view.args[0], [-1, size, 7])
    assert not correct_view(view, (None, MASK, None))
    expand = node(aten.expand.default, [-1, 5, -1])
    assert correct_view(expand, (None, MASK, None))
    assert expand.args[1] == [-1, 3, -1]


def test_unflattened_dimensions_have_the_sizes_that_remain():
    split = node(aten.unflatten.int, -1, [2, 5])
    assert correct_unflatten(split, (None, None, MASK))
    assert split.args[1:] == (1, [2, 3])


def test_a_squeeze_of_other_dimensions_than_channels():
    assert squeezes_the_same(node(aten.squeeze.dim, 1), (5, 1))
    assert squeezes_the_same(node(aten.squeeze.dims, [0, -1]), (1, 5, 1))
    assert not squeezes_the_same(node(aten.squeeze.dim, 0), (5, 1))
    assert not squeezes_the_same(node(aten.squeeze.default), (5, 1))


@pytest.mark.parametrize(
    ("target", "args", "corrected"),
    [
        (aten.slice.Tensor, (1, 0, 4), (1, 0, 2)),
        (aten.slice.Tensor, (-1, 3, 9223372036854775807), (1, 1, 3)),
        (aten.slice.Tensor, (1, -2, 5), (1, 1, 3)),
        (aten.slice.Tensor, (1, 1, 3), None),  # nothing of it remains
        (aten.slice.Tensor, (1, 0, 5, 2), None),
        (aten.slice.Tensor, (0, 1, 2), (0, 1, 2)),
        (aten.narrow.default, (1, 2, 3), (1, 1, 2)),
        (aten.select.int, (1, 3), (1, 1)),
        (aten.select.int, (1, -1), (1, 2)),
        (aten.select.int, (1, 2), None),
    ],
)
def test_slices_are_counted_among_the_indices_that_remain(target, args, corrected):
    part = node(target, *args)
    source = part.args[0]
    assert correct_slice(part, SOURCE) == (corrected is not None)
    assert part.args == (source, *(args if corrected is None else corrected))


def test_pads_add_the_zeros_that_remain():
    pad = node(aten.constant_pad_nd.default, [0, 0, 2, 1], 0.0)
    masks = correct_pad(pad, (None, torch.tensor([False, True, True, False, True]), None))
    assert pad.args[1:] == ([0, 0, 1, 1], 0.0)
    assert [None if mask is None else mask.tolist() for mask in masks] == [None, [True, False], None]
    pad = node(aten.constant_pad_nd.default, [0, 0, 0, 0, 0, 2], 0.0)
    masks = correct_pad(pad, (None, MASK, None, None))
    assert pad.args[1] == [0, 0, 0, 0, 0, 2]
    assert [None if mask is None else mask.tolist() for mask in masks] == [None, [True, False, False], None, None]
    pad = node(aten.constant_pad_nd.default, [2, 0], 0.0)
    masks = correct_pad(pad, (None, MASK))
    assert pad.args[1] == [1, 0]
    assert [None if mask is None else mask.tolist() for mask in masks] == [None, [False, True, True]]


def test_other_dimensions_are_padded_as_they_were():
    for pad in (node(aten.constant_pad_nd.default, [1, 1], 0.0), node(aten.pad.default, [1, 1, 0, 0], "reflect")):
        before = pad.args
        assert correct_pad(pad, (MASK, None)) == (MASK, None)
        assert pad.args == before


@pytest.mark.parametrize(
    "pad",
    [
        node(aten.constant_pad_nd.default, [-1, 0], 0.0),
        node(aten.constant_pad_nd.default, [0, -1], 0.0),
        node(aten.pad.default, [1, 1], "reflect"),
    ],
)
def test_pads_that_cut_or_reflect_channels_cannot_be_corrected(pad):
    before = pad.args
    assert correct_pad(pad, (None, MASK)) is None
    assert pad.args == before


def test_splits_have_parts_of_the_sizes_that_remain():
    parts = [torch.empty(2, 2), torch.empty(2, 3)]
    split = node(aten.split.Tensor, 2, 1)
    source = split.args[0]
    assert correct_split(split, parts, SOURCE, [(None, MASK[:2]), (None, MASK[2:])])
    assert (split.target, split.args) == (aten.split_with_sizes.default, (source, [1, 2], 1))
    split = node(aten.split.Tensor, 2, 0)
    assert correct_split(split, parts, SOURCE, [SOURCE, SOURCE])
    assert (split.target, split.args[1:]) == (aten.split.Tensor, (2, 0))
    split = node(aten.split_with_sizes.default, [1, 2, 2], 1)
    empty = [(None, MASK[:1]), (None, MASK[1:3]), (None, None)]
    assert not correct_split(split, [torch.empty(2, 1), *parts[:1] * 2], SOURCE, empty)
