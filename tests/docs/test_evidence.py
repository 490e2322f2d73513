"""The evidence: searches with the same name but for the seed are one row, with mean and standard error."""

import json

import pytest

from docs.evidence import groups, mean_and_error, methods, minilm, rows, within_budgets


def result(recipe, accuracy, **other):
    return {
        "recipe": recipe, "accuracy": accuracy, "float_accuracy": None, "relative_bops": 0.5, "epochs": 3,
        "float_epochs": 0, "finetune_epochs": 2, "weight_bytes": 2000, "seconds": 10, "device": "cpu",
    } | other  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    files = {
        "cifar10-vgg7-mu0.1-seed0": result("cifar10-vgg7", 92.0),
        "cifar10-vgg7-mu0.1-seed1": result("cifar10-vgg7", 93.0, relative_bops=0.3),
        "cifar10-vgg7-mu0.1-seed2": result("cifar10-vgg7", 94.0, relative_bops=0.4),
        "digits-seed0": result("digits-lenet5", 99.0, float_accuracy=98.0, float_epochs=4),
        "digits-validation-seed0": result("digits-lenet5", 50.0),
        "something-else": {"rows": []},
    }
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def test_searches_are_grouped_by_name_without_the_seed(folder):
    assert {name: len(found) for name, found in groups(False, folder).items()} == {"cifar10-vgg7-mu0.1": 3, "digits": 1}
    assert list(groups(True, folder)) == ["digits-validation"]


def test_a_row_is_the_mean_with_its_standard_error_and_the_published_points_stand_before(folder):
    *published, vgg, digits = rows(False, folder)
    assert (vgg["accuracy"], vgg["bit operations"]) == ("93.00 +- 0.58%", "0.400 +- 0.058%")
    assert (vgg["seeds"], vgg["epochs"], vgg["float"]) == (3, "3 + 2", "")
    assert (digits["accuracy"], digits["float"], digits["epochs"]) == ("99.00%", "98.00%", "4 + 3 + 2")
    assert ("Bayesian Bits, mu 0.1 (the paper, cifar10-vgg7)", "91.96%") in [
        (row["search"], row["accuracy"]) for row in published
    ]


def test_the_standard_error_is_that_of_the_mean():
    assert mean_and_error([1.0], 2) == "1.00"
    assert mean_and_error([1.0, 3.0], 1) == "2.0 +- 1.0"


def test_the_kept_results_are_on_the_page():
    searches = {row["search"]: row for row in rows(chosen=False)}
    assert searches["`mnist-lenet5-mu0.01`"]["seeds"] == 3
    assert searches["`cifar10-vgg7-mu0.1`"]["accuracy"] == "92.45%"
    assert {"LSQ 2/2", "LSQ 4/4"} <= {row["method"] for row in methods()}
    assert [row["network"] for row in within_budgets()] == [f"`budgets-resnet{depth}`" for depth in (20, 32, 44, 56)]
    assert within_budgets()[1]["1.5% bops"] == "90.99 / 89.50"
    ours, peer = (
        {row["all-MiniLM-L6-v2"]: row for row in minilm()}[name] for name in ("8/8, smoothed", "quantize_dynamic")
    )
    assert float(ours["mean cosine"]) >= 0.995 > float(peer["mean cosine"])
    times = [key for key in ours if key.startswith("ms, ")]
    assert times == ["ms, 8 tokens", "ms, 32 tokens", "ms, 128 tokens"]
    assert all(float(ours[key]) <= float(peer[key]) for key in times)
