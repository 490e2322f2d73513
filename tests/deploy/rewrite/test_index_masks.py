"""Index masks, from labels of a few elements."""

import torch

from bayesbits.deploy.rewrite.index_masks import (
    masks_from_labels,
    none_if_full,
    remaining_size,
    removes_any,
    same_masks,
)

REMOVED = torch.tensor([False, True, False, True, False])  # atoms 1 and 3; the last element is no atom


def lists(masks):
    return [None if mask is None else mask.tolist() for mask in masks]


def test_a_dimension_of_channels_has_a_mask_and_the_others_have_none():
    labels = torch.tensor([0, 1, 2, 3]).reshape(1, 4, 1).expand(2, 4, 5)
    assert lists(masks_from_labels(labels, REMOVED)) == [None, [True, False, True, False], None]


def test_labels_that_are_no_atoms_remain():
    assert lists(masks_from_labels(torch.tensor([-1, 1, -3]), REMOVED)) == [[True, False, True]]
    assert masks_from_labels(torch.tensor([[0, -1], [2, -2]]), REMOVED) == (None, None)
    assert lists(masks_from_labels(torch.tensor([-1, 1]), torch.tensor([True, True, False]))) == [[True, False]]


def test_two_dimensions_of_channels_have_a_mask_each():
    labels = torch.tensor([[0, 1, 2], [1, 1, 3]])
    assert lists(masks_from_labels(labels, REMOVED)) == [[True, False], [True, False, True]]


def test_what_is_no_grid_of_indices_has_no_masks():
    assert masks_from_labels(torch.tensor([[0, 1], [1, 0]]), REMOVED) is None


def test_masks_are_counted_and_compared():
    some, full = torch.tensor([True, False, True]), torch.ones(3, dtype=torch.bool)
    assert none_if_full(full) is None
    assert none_if_full(some) is some
    assert none_if_full(None) is None
    assert (remaining_size(3, some), remaining_size(3, None)) == (2, 3)
    assert removes_any((None, some))
    assert not removes_any((None, None))
    assert not removes_any(())
    assert same_masks((None, some), (None, some.clone()))
    assert same_masks((), (None, None))
    assert same_masks((None,), ())
    assert not same_masks((), (None, some))
    assert not same_masks((some,), (~some,))
    assert not same_masks((some,), (None,))
