"""Rows of other methods: their recipes and commands, what is measured of a run, and which rows run again."""

import json
import shlex

import pytest
import torch

import bayesbits as bb
from bayesbits.recipes.factories import build_model
from bayesbits.recipes.run import run
from bayesbits.recipes.run_folder import METRICS
from bayesbits.sweeps.workers import Ending, Outcome
from bayesbits.training.metrics import read_metrics
from experiments import methods
from experiments.methods import Comparison, Results, Row, chosen, rows, summary, table
from experiments.tasks import run_tasks
from tests.sweeps.made_runs import ScriptedWorkers, finish_run

FAILED = Outcome(Ending.FAILED, "the loss is not finite")


def test_the_rows_of_all_methods_are_valid_recipes():
    comparison = Comparison("digits-lenet5", epochs=7)
    names = [row.name for row in rows()]
    assert len(set(names)) == len(names)
    for row in rows():
        plain, tricks = (comparison.recipe_of(row, setting, 3) for setting in ("plain", "tricks"))
        assert (plain.seed, plain.search.epochs, plain.search.distillation) == (3, 7, 0.0)
        assert (tricks.search.distillation, tricks.float_training.epochs) == (0.5, 7)
        assert tricks.spec == plain.spec
    widths = {row.name: comparison.recipe_of(row, "plain", 0).spec for row in rows()}
    assert widths["LSQ 4/4 (8-bit ends)"].edge_bits == 8
    assert widths["PACT 2/2"].fixed_widths == (2, 2)
    assert widths[methods.FLOAT_ROW].rules["*"].bits == 32


def test_all_rows_with_tricks_start_from_the_float_network_of_our_recipe(tmp_path):
    comparison = Comparison("cifar10-vgg7", epochs=60, float_epochs=9)
    lsq, twn = (comparison.recipe_of(row, "tricks", 1) for row in (*chosen(["LSQ 2/2"]), *chosen(["twn"])))
    assert lsq.float_training == twn.float_training  # a queue trains it once
    assert (lsq.float_training.epochs, lsq.float_training.weights.optimizer) == (9, "sgd")
    assert comparison.recipe_of(*chosen(["twn"]), "plain", 1).float_training is None


@pytest.mark.parametrize(("epochs", "of_float"), [(60, 60), (300, 100)])
def test_the_float_start_has_the_epochs_of_our_recipe_and_no_more_than_the_search(epochs, of_float):
    made = Comparison("cifar10-vgg7", epochs=epochs).recipe_of(*chosen(["LSQ 2/2"]), "tricks", 0)
    assert (made.search.epochs, made.float_training.epochs) == (epochs, of_float)


@pytest.mark.parametrize("recipe", ["mnist-lenet5", "cifar10-vgg7"])
def test_the_ranges_of_a_method_learn_as_the_method_says(recipe):
    comparison = Comparison(recipe)
    for row in chosen(["lsq", "tqt", "lrnet"]):
        assert comparison.recipe_of(row, "plain", 0).search.ranges is None, row.name


def test_a_row_has_the_command_of_its_setting_and_seed(monkeypatch, tmp_path):
    comparison = Comparison("mnist-lenet5", "/some/where", 60, overrides=("search.mu=0.1",))
    command = comparison.command("tricks", 2)
    assert command == (
        "python -m experiments.methods mnist-lenet5 --data FOLDER --setting tricks --epochs 60 "
        "--set search.mu=0.1 --results FILE --seeds 2"
    )
    asked: list[int] = []
    monkeypatch.setattr(methods, "run_tasks", lambda tasks, *_, **__: asked.append(len(tasks)) or 1)
    with pytest.raises(SystemExit) as ended:  # the command is one that is taken, and says that rows are missing
        methods.main([*shlex.split(command)[3:], "--rows", "LSQ 2/2,lsq", "--results", str(tmp_path / "file.json")])
    assert (asked, ended.value.code) == ([5], 1)


@pytest.mark.parametrize("widths", ["4/4", "2/2"])
def test_ours_gets_the_cost_of_fixed_widths_as_its_budget(widths):
    comparison = Comparison("digits-lenet5")
    (ours,), (lsq,) = chosen([f"Bayesian Bits at the cost of LSQ {widths}"]), chosen([f"LSQ {widths}"])
    own, other = (comparison.recipe_of(row, "plain", 0) for row in (ours, lsq))
    assert (own.spec.method, other.search.budget) == ("bayesian_bits", None)
    network, _ = build_model("lenet5", {}, 10)
    compressor = bb.attach(network, torch.zeros(1, 1, 28, 28), other.spec)
    assert own.search.budget.relative_bops == compressor.cost().relative_bops


def test_rows_are_chosen_by_name_or_method():
    assert [row.name for row in chosen(["LSQ 4/4", "qt"])] == ["LSQ 4/4", "QT 8/8"]
    assert {row.overrides[0] for row in chosen(["lsq"])} == {"spec.method=lsq"}
    with pytest.raises(ValueError, match="there is no row 'LSQ 5/5'"):
        chosen(["LSQ 5/5"])


def test_results_are_kept_skipped_and_shown(tmp_path):
    path, row = tmp_path / "results.json", Row("LSQ 4/4", ())
    done = {
        "row": "LSQ 4/4", "setting": "plain", "seed": 0, "epochs": 5, "accuracy": 91.5, "relative_bops": 1.731,
        "relative_bops_8_bit_ends": None, "seconds_an_epoch": 2.5, "deployed": "4 of 4 layers in integers",
    }  # fmt: skip
    assert Results(path).rows == []
    Results(path).add(done | {"accuracy": 10.0})
    assert Results(path).add(done).startswith("91.50% at 1.731%")
    again = Results(path)
    assert again.rows == [done]  # the row of the same run is replaced
    assert again.find(row, "plain", 0, 5) == done
    assert again.find(row, "plain", 0, 6) is None
    assert again.find(row, "tricks", 0, 5) is None
    again.add(done | {"epochs": 6})
    assert again.find(row, "plain", 0, 5) == done
    assert again.find(row, "plain", 0, 6) == done | {"epochs": 6}
    assert "91.50%" in table(again.rows)
    assert summary(done).startswith("91.50% at 1.731%")
    refused = done | {"deployed": "no: 0.weight cannot be deployed: it has no zero", "relative_bops_8_bit_ends": 0.5}
    shown = table([refused])
    assert "0.weight cannot be deployed" in shown
    assert "0.500%" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "there is no recipe 'nonsense'"),
        (["nonsense", "--show"], "there are no results: .*methods-nonsense.json is not there"),
        (["digits-lenet5", "--rows", "LSQ 2/2,LSQ 5/5"], "there is no row 'LSQ 5/5'"),
        (["digits-lenet5", "--set", "nonsense=1", "--results", "a.json"], "nonsense"),
        (["digits-lenet5", "--set", "seed=1"], "methods-digits-lenet5.json is of the recipe as it is; give --results"),
        (["digits-lenet5", "--float-epochs", "1"], "is of the recipe as it is; give --results another file"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(arguments, message, monkeypatch, tmp_path):
    monkeypatch.setattr("experiments.methods.run_tasks", lambda *_, **__: pytest.fail("it ran"))
    monkeypatch.setattr("experiments.methods.RESULTS", tmp_path)
    with pytest.raises(SystemExit, match=message):
        methods.main(arguments)


@pytest.mark.parametrize(
    "wrong", [["--seeds", "a"], ["--jobs", "0"], ["--jobs", "-1"], ["--jobs", "two"], ["--setting", "trick"]]
)
def test_wrong_values_of_options_are_named(wrong, capsys):
    with pytest.raises(SystemExit):
        methods.main(["digits-lenet5", *wrong])
    said = capsys.readouterr().err
    assert f"argument {wrong[0]}: " in said
    assert repr(wrong[1]) in said


def test_a_row_of_a_method_that_was_changed_runs_again_and_takes_no_result_of_before(tmp_path, monkeypatch):
    """The old run has the same recipe: only the code is another one."""
    (row,), path = chosen(["PACT 2/2"]), tmp_path / "results.json"
    comparison = Comparison("digits-lenet5", epochs=1)

    def made(about, folder):
        return about | {"epochs": 1, "accuracy": float(json.loads((folder / "result.json").read_text())["accuracy"])}

    monkeypatch.setattr(methods, "measured", made)
    monkeypatch.setattr(methods, "summary", lambda result: "")
    finish_run(tmp_path / "runs" / "old", comparison.recipe_of(row, "plain", 0), accuracy=10.0)
    old = {"row": row.name, "setting": "plain", "seed": 0, "epochs": 1, "accuracy": 10.0, "outdated": "its decay"}
    Results(path).add(old)
    (task,) = comparison.tasks([row], ["plain"], [0], path)
    assert not task.kept
    assert task.again.startswith("its decay ")
    stopped = ScriptedWorkers(1, {"digits-lenet5-PACT-2-2-plain-1-epochs-seed-0": [FAILED]})
    assert run_tasks([task], tmp_path / "runs", workers=stopped) == 1
    assert Results(path).rows == [old]
    workers = ScriptedWorkers(1)
    assert run_tasks([task], tmp_path / "runs", workers=workers) == 0
    assert len(workers.started) == 1
    (found,) = Results(path).rows
    assert (found["accuracy"], "outdated" in found) == (97.0, False)
    Results(path).path.write_text(json.dumps({"rows": [old, found]}))  # as of two files in one
    assert comparison.tasks([row], ["plain"], [0], path)[0].kept
    Results(path).path.write_text(json.dumps({"rows": [found | {"outdated": "its decay"}]}))
    (later,) = comparison.tasks([row], ["plain"], [0, 0], path)
    workers = ScriptedWorkers(1)
    assert run_tasks([later], tmp_path / "runs", workers=workers) == 0
    assert len(workers.started) == 1  # the reason is the same, and the run is another one


def test_what_is_measured_of_a_run_becomes_its_row(tmp_path):
    (row,) = chosen(["LR-Net 2/32 (float ends)"])
    comparison, path = (
        Comparison("digits-lenet5", epochs=2, overrides=("float.epochs=1", "finetune.epochs=1", "search.log_steps=5")),
        tmp_path / "results.json",
    )
    (task,) = comparison.tasks([row], ["plain"], [3], path)
    run(task.recipe, tmp_path / "run", device="cpu", progress=False, say=lambda _: None)
    task.store(task.measure(tmp_path / "run"))
    (found,) = Results(path).rows
    assert (found["row"], found["setting"], found["seed"], found["epochs"]) == (row.name, "plain", 3, 2)
    assert found["command"] == comparison.command("plain", 3)
    assert found["deployed"] == "0 of 4 layers in integers"
    bits = {"features.0.weight": 32, "features.3.weight": 2, "classifier.1.weight": 2, "classifier.3.weight": 32}
    assert {name: width for name, width in found["bits"].items() if name in bits} == bits
    # Multiply-accumulates of the four layers times the bits of weights and inputs.
    macs = 460_800, 3_276_800, 524_288, 5_120
    as_trained = sum(n * w * 32 for n, w in zip(macs, (32, 2, 2, 32), strict=True))
    narrow = sum(n * w * a for n, w, a in zip(macs, (8, 2, 2, 8), (8, 32, 32, 8), strict=True))
    assert found["relative_bops"] == pytest.approx(100 * as_trained / (sum(macs) * 1024))
    assert found["relative_bops_8_bit_ends"] == pytest.approx(100 * narrow / (sum(macs) * 1024))
    lines = [line for line in read_metrics(tmp_path / "run" / METRICS) if line["phase"] == "search"]
    seconds = max(line.get("seconds", 0.0) for line in lines)
    assert found["seconds_an_epoch"] == pytest.approx(seconds / 2, abs=0.006)
