"""The published points are those of recipes of the package, and of the paper's tables."""

from bayesbits.recipes import names
from bayesbits.report.paper_points import FLOAT, OTHERS, PAPER, POINTS


def test_every_recipe_exists_and_every_point_is_a_percentage():
    assert set(POINTS) <= set(names())
    assert set(FLOAT) == set(POINTS)
    for kinds in POINTS.values():
        assert set(kinds) == {PAPER, OTHERS}
        for points in kinds.values():
            assert all(0 < one.relative_bops < 100 and 50 < one.accuracy < 100 for one in points)
            assert all(one.errors is None or max(one.errors) < 1 for one in points)
            assert len({one.method for one in points}) == len(points)


def test_the_figures_that_the_recipe_names_are_there():
    found = {(one.accuracy, one.relative_bops) for one in POINTS["cifar10-vgg7"][PAPER]}
    assert {(93.23, 0.51), (91.96, 0.29)} <= found
