"""Searches with the same name but for the seed are one, with mean and standard error."""

import pytest

from docs.searches import Search, accuracy_text, cost_text, searches
from tests.docs.kept import result, write


@pytest.fixture
def found(tmp_path):
    write(
        tmp_path,
        cifar10_vgg7_mu0__1_seed10=result("cifar10-vgg7", 94.0, relative_bops=0.4, seed=10),
        cifar10_vgg7_mu0__1_seed1=result("cifar10-vgg7", 92.0, relative_bops=0.5, seed=1),
        cifar10_vgg7_mu0__1_seed2=result("cifar10-vgg7", 93.0, relative_bops=0.3, seed=2),
        digits_lenet5_mu0__1_seed0=result("digits-lenet5", 99.0, float_accuracy=98.0, float_epochs=4),
        digits_lenet5_validation_mu0__1_seed0=result("digits-lenet5", 50.0, validation_accuracy=60.0),
        something_else={"rows": []},
        a_list=[1],
        regression_seed0=result("mine", 0.0) | {"accuracy": None},
    )
    return {search.name: search for search in searches(tmp_path)}


def test_files_are_grouped_by_name_and_others_are_passed_over(found):
    assert {name: one.seeds for name, one in found.items()} == {
        "cifar10-vgg7-mu0.1": 3, "digits-lenet5-mu0.1": 1, "digits-lenet5-validation-mu0.1": 1,
    }  # fmt: skip
    assert [one["seed"] for one in found["cifar10-vgg7-mu0.1"].results] == [1, 2, 10]
    assert [one.choosing for one in found.values()] == [False, False, True]


def test_the_standard_error_is_that_of_the_mean_and_one_seed_has_none(found):
    search = found["cifar10-vgg7-mu0.1"]
    assert (accuracy_text(search.accuracy), cost_text(search.cost)) == ("93.00 ± 0.58%", "0.400 ± 0.058%")
    single = found["digits-lenet5-mu0.1"]
    assert (accuracy_text(single.accuracy), single.accuracy.error) == ("99.00%", None)
    assert (single.epochs, single.float_accuracy.mean, search.float_accuracy) == ("4 + 3 + 2", 98.0, None)
    assert found["digits-lenet5-validation-mu0.1"].held_back == 60.0
    assert search.held_back is None


def test_seconds_are_those_of_a_gpu_with_float_beside_them_where_every_seed_has_it():
    runs = [result("a", 1.0, seconds=10, stage_seconds={"float": 3}), result("a", 1.0, seconds=20)]
    assert Search("a", tuple(runs)).seconds == "15"
    assert Search("a", tuple(runs[:1])).seconds == "10, float 3 of them"
    assert Search("a", (result("a", 1.0, device="x86_64 (cpu)"),)).seconds == "CPU"


@pytest.mark.parametrize(
    ("recipe", "setting", "other", "command"),
    [
        (
            "cifar10-vgg7", "mu0.1", {"epochs": 300},
            "bayesbits search cifar10-vgg7 --set data.folder=FOLDER --set search.mu=0.1 --set seed=0",
        ),
        (
            "cifar10-vgg7-distilled", "60epochs-validation-sgd-budget0.35", {"epochs": 60, "float_epochs": 50},
            "bayesbits search cifar10-vgg7-distilled --budget '0.35% bops' --set data.folder=FOLDER --set "
            "search.epochs=60 --set float.epochs=50 --set seed=0  # also validation-sgd: see experiments/LOG.md",
        ),
        (
            "digits-lenet5", "mu0.1", {"epochs": 20, "float_epochs": 20},
            "bayesbits search digits-lenet5 --set search.mu=0.1 --set seed=0",
        ),
        ("mine", "mu3", {"command": "bayesbits search mine"}, "bayesbits search mine"),
    ],
)  # fmt: skip
def test_the_command_is_that_of_the_file_or_told_by_its_fields(recipe, setting, other, command):
    assert Search(f"{recipe}-{setting}", (result(recipe, 1.0, **other),)).command == command


def test_a_plain_search_differs_in_epochs_and_cost_alone():
    names = ("a-mu0.1", "a-25epochs-budget0.30", "a-prune-false-budget0.30", "a-validation-budget0.30", "a")
    assert [Search(name, (result("a", 1.0),)).plain for name in names] == [True, True, False, False, False]
