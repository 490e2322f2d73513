"""What compression costs each class and what fine-tuning changes: means over seeds, and a sentence about them."""

from xml.etree import ElementTree

import pytest

from docs.class_figures import class_changes, class_names, class_sentence, classes, fine_tuning, pooled_error
from docs.searches import Search
from tests.docs.kept import result, write


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(str(svg)).iter() if one.tag.endswith("text")]


def classified(name: str, *pairs: tuple[list, list]) -> Search:
    return Search(
        name,
        tuple(
            result("mine", 90.0, class_accuracies=after, float_class_accuracies=before, seed=seed)
            for seed, (after, before) in enumerate(pairs)
        ),
    )


def test_classes_change_by_the_mean_over_seeds_and_some_may_have_no_examples():
    search = classified("cifar10-x", ([90.0, 80.0], [92.0, 80.0]), ([88.0, 81.0], [92.0, 80.0]))
    changes = class_changes(search)
    assert [change.mean for change in changes] == [-3.0, 0.5]
    assert changes[0].error == pytest.approx(1.0)
    assert pooled_error(changes) == pytest.approx(((2.0 + 0.5) / 2 / 2) ** 0.5)
    assert class_names(search, 2) == ["0", "1"]
    assert class_names(search, 10)[3] == "cat"
    assert "points of accuracy from float to compressed; the dashed line is the mean, -1.25" in texts(classes(search))


def test_the_sentence_names_classes_that_are_far_from_the_mean_and_one_seed_names_none():
    float_accuracies = [90.0] * 4
    one = ([80.0, 90.0, 90.0, 90.0], float_accuracies)
    alone = class_sentence(classified("mine", one))
    assert "by -10.00 for 0 and by +0.00 for 1 at the ends" in alone
    assert alone.endswith("With one seed, differences between classes cannot be told from chance.")
    near = [([80.0 + n, 90.0 - n, 90.0, 90.0 + n], float_accuracies) for n in (-1, 0, 1)]
    assert class_sentence(classified("mine", *near)).endswith(
        "pooled over the classes of 3 seeds): 0 (-7.50), 1 (+2.50), 2 (+2.50), 3 (+2.50)."
    )
    noisy = [([80.0 + 9 * n, 90.0 - 9 * n, 90.0, 90.0 + 9 * n], float_accuracies) for n in (-1, 0, 1)]
    assert class_sentence(classified("mine", *noisy)).endswith("3 seeds): none.")


def test_fine_tuning_is_the_change_of_each_seed(tmp_path):
    write(
        tmp_path,
        a_mu1_seed0=result("a", 91.0, search_accuracy=90.0),
        a_mu1_seed1=result("a", 94.0, search_accuracy=91.0, seed=1),
        b_mu1_seed0=result("b", 91.0, search_accuracy=None),
    )
    (row,) = fine_tuning(tmp_path)
    assert (row["before"], row["after"], row["change"]) == ("90.50 ± 0.50%", "92.50 ± 1.50%", "+2.00 ± 1.00")
