"""Sizes that may change: what is allowed, in words, and refused in calls."""

import pytest
import torch

from bayesbits.records.dynamic_size import DynamicSize, check_shapes, shapes_in_words

BATCH = DynamicSize("batch", ((0, 0), (1, 0)))
LENGTH = DynamicSize("length", ((0, 1), (1, 1)), low=2, high=12, multiple=2)
NAMES, SHAPES = ("tokens", "mask"), ((3, 8), (3, 8))


@pytest.mark.parametrize(("size", "allowed"), [(1, False), (2, True), (3, False), (12, True), (14, False)])
def test_sizes_lie_between_the_bounds_and_are_multiples(size, allowed):
    assert LENGTH.allows(size) is allowed


@pytest.mark.parametrize(("size", "smaller"), [(12, 6), (10, 6), (4, 2), (2, None)])
def test_a_smaller_size_is_about_one_half_and_allowed(size, smaller):
    assert LENGTH.smaller(size) == smaller


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (BATCH, "any batch"),
        (LENGTH, "length of 2 to 12 in multiples of 2"),
        (DynamicSize("width", (), low=33), "width of at least 33"),
    ],
)
def test_words(size, words):
    assert str(size) == words


def test_shapes_name_the_sizes_that_may_change():
    lines = shapes_in_words(("image", "scale"), ((2, 3, 8, 8), ()), [DynamicSize("batch", ((0, 0),))])
    assert lines == ("image: batch x 3 x 8 x 8 (any batch)", "scale: a single number")


def test_shapes_of_a_call_are_checked():
    check_shapes(NAMES, SHAPES, [BATCH, LENGTH], [torch.zeros(1, 4), torch.zeros(1, 4)])
    with pytest.raises(ValueError, match="'mask' has a length of 6, and 'tokens' one of 4"):
        check_shapes(NAMES, SHAPES, [BATCH, LENGTH], [torch.zeros(1, 4), torch.zeros(1, 6)])
    with pytest.raises(ValueError, match="'tokens' has the shape 1 x 5, and the network takes batch x length"):
        check_shapes(NAMES, SHAPES, [BATCH, LENGTH], [torch.zeros(1, 5), torch.zeros(1, 5)])
    with pytest.raises(ValueError, match="'mask' has the shape 3 x 4, and the network takes batch x 8"):
        check_shapes(NAMES, SHAPES, [BATCH], [torch.zeros(3, 8), torch.zeros(3, 4)])
    with pytest.raises(ValueError, match="'tokens' has the shape 4 x 2 x 2"):
        check_shapes(NAMES, SHAPES, [BATCH, LENGTH], [torch.zeros(4, 2, 2), torch.zeros(4, 2)])
