"""The tables of evidence: searches of a network beside published points, targets, ONNX files and commands."""

import pytest

from docs.evidence import budget_searches, choices, experiments, minilm, within_budgets, within_milliseconds
from tests.docs.kept import result, write


@pytest.fixture
def folder(tmp_path):
    return write(
        tmp_path,
        cifar10_vgg7_mu0__1_seed0=result("cifar10-vgg7", 92.0, relative_bops=0.3, epochs=300),
        cifar10_vgg7_mu0__1_seed1=result("cifar10-vgg7", 92.0, relative_bops=0.3, epochs=300, seed=1),
        cifar10_vgg7_mu0__01_seed0=result("cifar10-vgg7", 93.0, mu=0.01, epochs=300),
        cifar10_vgg7_distilled_40epochs_prune_false_float__epochs_50_budget0__45_seed0=result(
            "cifar10-vgg7-distilled", 90.0
        ),
        cifar10_vgg7_distilled_validation_mu0__1_seed0=result("cifar10-vgg7-distilled", 91.0, validation_accuracy=95.0),
        mine_mu0__1_seed0=result("mine", 50.0),
        mine_mu0__1_seed1=result("mine", 51.0, seed=1),
        whole_test_set_cifar10_vgg7_mu0__1_seed1={"accuracy": {"fast": 91.987, "deployed": 0.0}},
        whole_test_set_mine_mu0__1_seed0={"accuracy": {"fast": 50.0, "deployed": 0.0}},
        whole_test_set_mine_mu0__1_seed1={"accuracy": {"fast": 52.0, "deployed": 0.0}},
    )


def test_every_network_has_a_table_with_published_points_verdicts_and_commands(folder):
    vgg, mine = experiments(folder)
    assert (vgg.title, mine.title) == ("VGG-7 on CIFAR-10", "mine")
    names = [row["search"] for row in vgg.rows]
    assert names[:2] == ["`cifar10-vgg7-mu0.01`", "`cifar10-vgg7-mu0.1`"]  # by cost, and no ablation
    assert names[2] == "Bayesian Bits, mu 0.1 (the paper)"
    assert "GETA (2025) (other work)" in names
    assert vgg.rows[2]["accuracy"] == "91.96 ± 0.04%"
    assert [row.keys() for row in vgg.rows] == [vgg.rows[0].keys()] * len(names)
    assert [row["ONNX file"] for row in vgg.rows[:2]] == ["", "91.99% (1 of 2 seeds)"]
    assert mine.rows[0]["ONNX file"] == "51.00 ± 1.00%"
    assert (vgg.rows[0]["seeds"], vgg.rows[0]["accuracy"], vgg.rows[0]["seconds"]) == ("1 seed", "93.00%", "10")
    assert vgg.notes[0] == (
        "`cifar10-vgg7-mu0.01`: 0.13 points behind, with 1 seed of 3; wanted are 93.23 ± 0.10% at 0.51%"
    )
    assert vgg.commands[1] == "bayesbits search cifar10-vgg7 --set data.folder=FOLDER --set search.mu=0.1 --set seed=0"
    assert len(mine.rows) == 1


def test_searches_that_choose_settings_have_a_table_of_their_own(folder):
    table = choices(folder)
    assert [(row["search"], row["held-back images"]) for row in table.rows] == [
        ("`cifar10-vgg7-distilled-validation-mu0.1`", "95.00%")
    ]


def test_searches_within_budgets_tell_the_worst_of_their_seeds(tmp_path):
    def row(seed, accuracy, used, **options):
        key = {"network": "digits", "seed": seed, "steps": 3000} | (options or {"budget": "1% bops"})
        return {"key": key, "float_accuracy": 98.0, "accuracy": accuracy, "within": used <= 1, "used": used}

    rows = [row(0, 98.5, 0.99), row(1, 97.0, 0.925), row(2, 98.0, 1.25), row(0, 1.0, 0.5, mu=0.1)]
    write(tmp_path, search_budgets=rows)
    (found,) = budget_searches(tmp_path)
    assert found == {
        "network": "digits", "steps": "3,000", "budget": "1% bops", "seeds": "3 seeds", "within it": "2 of 3",
        "least that is used": "92.5%", "points over float": "-0.17 ± 0.44", "worst seed": "-1.00",
    }  # fmt: skip


def test_plans_within_milliseconds_have_their_limit_from_the_part_that_is_used(tmp_path):
    eight = {"method": "8/8", "used": None, "latency_ms": 0.4, "measured_ms": 0.35, "accuracy": 91.0}
    rows = [eight, eight | {"method": "learned", "used": 0.8}]
    content = {"model": "resnet20", "float_ms": 0.75, "float_accuracy": 91.5, "images": 2000, "rows": rows}
    write(tmp_path, budgets_resnet20_latency=content, budgets_resnet20={})
    first, second = within_milliseconds(tmp_path)
    assert (first["limit, ms"], second["limit, ms"]) == ("", "0.500")
    assert (second["predicted"], second["measured"], second["float file"]) == ("0.400", "0.350", "0.750")
    assert (second["plan"], second["accuracy"], second["float"], second["images"]) == (
        "learned", "91.00%", "91.50%", "2,000",
    )  # fmt: skip


def test_the_kept_results_are_on_the_page():
    searches = {row["search"]: row for table in experiments() for row in table.rows}
    assert int(searches["`mnist-lenet5-mu0.01`"]["seeds"].split()[0]) >= 3
    assert "±" in searches["`mnist-lenet5-mu0.01`"]["accuracy"]
    assert [row["network"] for row in within_budgets()] == [f"`budgets-resnet{depth}`" for depth in (20, 32, 44, 56)]
    assert within_budgets()[1]["1.5% bops"] == "90.99 / 89.50"
    ours, peer = (
        {row["all-MiniLM-L6-v2"]: row for row in minilm()}[name] for name in ("8/8, smoothed", "quantize_dynamic")
    )
    assert float(ours["mean cosine"]) >= 0.995 > float(peer["mean cosine"])
    times = [key for key in ours if key.startswith("ms, ")]
    assert times == ["ms, 8 tokens", "ms, 32 tokens", "ms, 128 tokens"]
    assert all(float(ours[key]) <= float(peer[key]) for key in times)
