"""Searches and the demo from the command line: what they print, what they write, and how they continue."""

import json
import subprocess
import sys

import pytest
import torch

import bayesbits as bb
from bayesbits import recipes
from bayesbits.cli import search as implementation
from bayesbits.deploy.onnx.runtime import Session
from bayesbits.zoo import models
from tests.cli.invoke import SHORT, bayesbits, interrupting_at
from tests.latency_tables import made_up_table
from tests.recipes.made_data import SHORT_DIGITS

SEARCH = ["search", "digits-lenet5", *SHORT, "--device", "cpu"]


def test_a_real_process_searches_and_its_plan_is_shown(here):
    command = [sys.executable, "-m", "bayesbits", *SEARCH, "--output", "run"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert process.returncode == 0, process.stderr
    result = json.loads((here / "run/result.json").read_text())
    for text in ("Bits and channels", "features.3", "Before and after", f"{result['accuracy']:.2f}%", "result.json"):
        assert text in process.stdout
    assert "float network:" in process.stderr
    output = bayesbits("plan", "run").stdout
    assert "classifier.3" in output
    assert f"{result['relative_bops']:.3g}% of 32 x 32 bits" in output
    assert f"{result['accuracy']:.2f}%" in output
    assert "report: run/report.html" in process.stdout
    written = (here / "run/report.html").read_bytes()
    assert f"{result['accuracy']:.2f}%".encode() in written
    assert bayesbits("report", "run").stdout == "report: run/report.html\n"
    assert (here / "run/report.html").read_bytes() == written
    (here / "run/plan.json").write_text("{")
    assert "run/plan.json is damaged, or of another version: this is not a Plan" in bayesbits("report", "run").stderr
    assert "this is not a Plan" in (here / "run/report.html").read_text()


@pytest.mark.check
def test_two_processes_come_to_what_one_does_and_one_of_them_talks(here):
    bayesbits(*SEARCH, "--output", "one")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "-m", "bayesbits", *SEARCH, "--output", "two"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("Before and after") == 1
    one, two = (recipes.Result.load(here / name / "result.json") for name in ("one", "two"))
    assert two.accuracy == pytest.approx(one.accuracy, abs=1.0)
    assert two.relative_bops == pytest.approx(one.relative_bops, rel=1e-2)


def test_an_interrupted_search_says_how_to_go_on_and_does(here, monkeypatch):
    interrupting_at(6, monkeypatch)
    stopped = bayesbits(*SEARCH, code=130)
    way_on = next(line for line in stopped.stderr.splitlines() if line.startswith("Go on with: bayesbits "))
    assert "search was interrupted after 3 steps" in stopped.stderr
    bayesbits(*way_on.removeprefix("Go on with: bayesbits ").split(), "--device", "cpu")
    assert (here / "runs/digits-lenet5/result.json").exists()


def test_a_search_that_could_not_start_leaves_nothing_behind(here):
    torch.manual_seed(0)
    torch.save(models.create("lenet5").state_dict(), here / "trained.pth")
    search = ["search", "mine.toml", "--device", "cpu", "--output", "run"]
    (here / "mine.toml").write_text(
        '[data]\nname = "digits"\n[model]\nname = "lenet5"\n[search]\nepochs = 1\nepoch_steps = 1\n'
    )
    wrong = bayesbits(*search, "--set", "model.checkpoint=none.pth", code=1).stderr
    assert "none.pth is not there" in wrong
    bayesbits(*search, "--set", "model.checkpoint=trained.pth")


@pytest.mark.check
def test_a_demo_that_was_interrupted_goes_on_and_one_that_was_finished_starts_anew(here, monkeypatch):
    monkeypatch.setattr(implementation, "load", lambda name: recipes.load(name, SHORT_DIGITS))
    with monkeypatch.context() as patch:
        interrupting_at(8, patch)
        bayesbits("demo", code=130)
    (here / "runs/demo/mine.txt").write_text("a user's own")
    output = bayesbits("demo").stdout
    assert "Before and after" in output
    assert "x fewer" in output
    assert output.rstrip().endswith("report: runs/demo/report.html")
    first = (here / "runs/demo/result.json").stat().st_mtime_ns
    monkeypatch.setattr(implementation, "run_verify", lambda *_: None)  # which the first demo did
    bayesbits("demo")
    assert (here / "runs/demo/result.json").stat().st_mtime_ns > first
    assert (here / "runs/demo/mine.txt").exists()


def test_the_demo_leaves_a_run_of_another_recipe_alone(here):
    folder = here / "runs/demo"
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(recipes.to_toml(recipes.load("mnist-lenet5")))
    for name in ("result.json", "report.html", "model.safetensors"):
        (folder / name).write_text("hours of work")
    bayesbits("demo", code=1)
    assert all((folder / name).read_text() == "hours of work" for name in ("result.json", "model.safetensors"))


def test_the_page_of_a_demo_is_written_where_the_proof_fails(here, monkeypatch):
    def fail(*_):
        raise bb.VerificationError("something differs")

    finished = []
    monkeypatch.setattr(implementation, "run_recipe", lambda *_, **__: "result")
    monkeypatch.setattr(implementation, "show_result", lambda result: None)
    monkeypatch.setattr(implementation, "finish", lambda result, folder: finished.append((result, folder)))
    monkeypatch.setattr(implementation, "run_verify", fail)
    assert "something differs" in bayesbits("demo", "--output", here, code=1).stderr
    assert finished == [("result", here)]


def test_a_search_with_a_budget_ends_with_its_verdict(here):
    shown = bayesbits(*SEARCH, "--budget", "1% bops", "--output", "run").stdout.replace("\n", " ")
    result = recipes.Result.load(here / "run/result.json")
    assert result.relative_bops <= 1.0
    assert result.verdict.startswith("within the budget of 1% bops: ")
    assert result.verdict in shown
    assert recipes.load(here / "run/recipe.toml").search.budget == bb.Budget(relative_bops=1.0)
    assert "does not say of what" in bayesbits(*SEARCH, "--budget", "1", "--output", "other", code=1).output


def test_a_search_within_milliseconds_says_what_was_predicted_and_measured(here, monkeypatch):
    compressor = bb.attach(models.create("lenet5", num_classes=10), torch.zeros(1, 1, 28, 28), bb.Spec(bits=(2, 4, 8)))
    table = made_up_table(compressor.topology)
    table.save(here / "table.json")
    limit = 0.5 * compressor.cost(compressor.plan(), table).latency_ms
    monkeypatch.setattr(Session, "fastest", lambda self, feeds, rounds: 0.125)
    options = ["--set", "spec.bits=[2, 4, 8]", "--budget", f"{limit} ms", "--latency-table", "table.json"]
    shown = bayesbits(*SEARCH, *options, "--output", "run").stdout.replace("\n", " ")
    result = recipes.Result.load(here / "run/result.json")
    assert result.latency_ms <= limit
    assert result.measured_latency_ms == 125.0
    assert result.latency_threads == 1
    assert result.verdict.startswith(f"within the budget of {limit} ms: {result.latency_ms:.4g} ms predicted, ")
    assert "; measured: 125 ms on " in result.verdict
    assert result.verdict.endswith(", which is not the processor of the latency table, a made-up processor")
    assert result.verdict in shown
    (here / "table.json").unlink()  # the folder of the run has its own
    assert recipes.load(here / "run/recipe.toml").search.budget.table == table
    monkeypatch.setattr(Session, "fastest", lambda self, feeds, rounds: 0.25)
    bayesbits("export", "run")
    again = recipes.Result.load(here / "run/result.json")
    assert again.measured_latency_ms == 250.0
    assert again.verdict.count("measured") == 1
    failed = bayesbits(*SEARCH, *options[:4], "--output", "other", code=1).stderr.replace("\n", " ")
    assert "needs the latency table of the network on your machine" in failed


def test_another_method_by_its_name(here):
    output = bayesbits(
        *SEARCH, "--method", "lsq", "--set", "spec.weight_bits=4", "--set", "spec.activation_bits=4", "-o", "run"
    ).stdout
    result = recipes.Result.load(here / "run/result.json")
    assert result.method == "lsq"
    assert {layer["weight_bits"] for layer in result.layers} == {4}
    assert "report: run/report.html" in output
    assert recipes.load(here / "run/recipe.toml").spec.method == "lsq"


def test_an_unknown_method_is_refused_with_the_names(here):
    assert "lsq" in bayesbits(*SEARCH, "--method", "lsqq", code=2).stderr
