"""Targets: what counts as reached, by how much a search is behind, and what stands in for one that has not run."""

import pytest

from docs.searches import Search
from docs.targets import Target, nearest, target_rows, targets
from tests.docs.kept import result

TARGET = Target("VGG-7", "cifar10-vgg7-distilled-budget0.35", 0.35, accuracy=93.5)


def search(*accuracies: float, name: str = "cifar10-vgg7-distilled-budget0.35", cost: float = 0.35, **other) -> Search:
    recipe = "cifar10-vgg7-distilled" if "distilled" in name else "cifar10-vgg7"
    return Search(name, tuple(result(recipe, one, relative_bops=cost, **other) for one in accuracies))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "not run"),
        (search(93.4, 93.5, 93.6), "reached"),
        (search(93.4, 93.5, 93.5), "0.03 points behind"),
        (search(93.496, 93.496, 93.496), "reached"),  # 93.50%
        (search(93.7), "reached, with 1 seed of 3"),
        (search(93.7, 93.7, 93.7, cost=0.3504), "reached"),  # 0.350%
        (search(93.7, 93.7, 93.7, cost=0.362), "0.012% of the bit operations too many"),
        (search(93.0, cost=0.4), "0.50 points behind, 0.050% of the bit operations too many, with 1 seed of 3"),
    ],
)
def test_a_target_is_reached_by_the_mean_of_three_seeds_within_its_cost(found, words):
    assert TARGET.verdict(found) == words


def test_a_target_below_float_is_that_of_the_same_runs():
    target = Target("ResNet", "a", 0.35, below_float=0.3)
    assert target.words == "float - 0.3 points"
    assert target.verdict(search(92.8, 92.8, 92.8, float_accuracy=93.0)) == "reached"
    assert target.verdict(search(92.6, 92.6, 92.6, float_accuracy=93.0)) == "0.10 points behind"
    assert "no float network to compare with" in target.verdict(search(99.0))


def test_a_published_point_is_repeated_within_both_standard_errors():
    target = Target("VGG-7", "cifar10-vgg7-mu0.01", 0.51, accuracy=93.23, errors=(0.1, 0.03))
    assert target.verdict(search(93.13, 93.13, 93.13, cost=0.54)) == "within the errors or better"
    assert target.verdict(search(93.02, 93.02, 93.02, cost=0.5)) == "0.11 points behind"
    spread = search(92.9, 93.0, 93.1, cost=0.5)  # an error of 0.058 of its own
    assert target.verdict(spread) == "0.07 points behind"


def test_the_best_of_the_same_recipe_within_the_cost_stands_in_for_what_has_not_run():
    low, high = (search(value, name=f"cifar10-vgg7-distilled-validation-{value}-mu1") for value in (93.0, 93.2))
    dear = search(94.0, name="cifar10-vgg7-distilled-90epochs-budget0.45", cost=0.45)
    other = search(94.0, name="cifar10-vgg7-mu0.1", cost=0.3)
    assert nearest(TARGET, [low, high, dear, other]) == (high, 2)
    assert nearest(TARGET, [dear, other]) is None
    held = [search(a, name=f"cifar10-vgg7-distilled-validation-{a}-mu1", validation_accuracy=b)
            for a, b in ((93.0, 95.0), (93.2, 94.0))]  # fmt: skip
    assert nearest(TARGET, held) == (held[0], 1)  # the images that were held back choose
    rows = target_rows([low, high])
    place = next(n for n, row in enumerate(rows) if TARGET.search in row["network"])
    assert (rows[place]["reached"], rows[place]["accuracy"]) == ("not run", "")
    assert rows[place + 1]["network"].startswith("so far: 3 + 2 epochs, images held back (`cifar10-vgg7-distilled-val")
    assert rows[place + 1]["reached"] == (
        "0.30 points behind, with 1 seed of 3; the best of 2 settings on the test images"
    )


def test_the_targets_of_the_papers_settings_are_its_points():
    found = {target.search: target for target in targets()}
    assert found["mnist-lenet5-mu0.01"].accuracy == 99.30
    point = found["cifar10-vgg7-mu0.1"]
    assert (point.accuracy, point.relative_bops, point.errors) == (91.96, 0.29, (0.04, 0.0))
    assert found["cifar10-vgg7-distilled-budget0.20"].accuracy == 92.0
