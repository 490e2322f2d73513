"""The command line as a user sees it: what it prints, what it writes, and how it ends."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch.nn.functional as F
from typer.testing import CliRunner

from bayesbits import recipes
from bayesbits.cli import demo as demo_command
from bayesbits.cli.main import app
from tests.recipes.made_data import SHORT_DIGITS

SHORT = [part for override in SHORT_DIGITS for part in ("--set", override)]
SEARCH = ["search", "digits-lenet5", *SHORT, "--device", "cpu"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Every command runs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Path(tmp_path)


def bayesbits(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def interrupting_at(call, monkeypatch):
    """Ctrl-C when the loss is computed so many times; the first time it is only tried."""
    calls, cross_entropy = 0, F.cross_entropy

    def interrupted(*arguments):
        nonlocal calls
        calls += 1
        if calls == call:
            signal.raise_signal(signal.SIGINT)
        return cross_entropy(*arguments)

    monkeypatch.setattr(F, "cross_entropy", interrupted)


def test_the_recipes_are_listed():
    output = bayesbits("recipes").stdout
    assert all(name in output for name in recipes.names())


def test_a_real_process_searches_and_its_plan_is_shown(here):
    command = [sys.executable, "-m", "bayesbits", *SEARCH, "--out", "run"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
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
    assert "run/plan.json cannot be used: this is not a Plan" in bayesbits("report", "run", code=1).stderr


def test_two_processes_come_to_what_one_does_and_one_of_them_talks(here):
    bayesbits(*SEARCH, "--out", "one")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "-m", "bayesbits", *SEARCH, "--out", "two"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
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


def test_a_demo_that_was_interrupted_goes_on_and_one_that_was_finished_starts_anew(here, monkeypatch):
    monkeypatch.setattr(demo_command, "load", lambda name: recipes.load(name, SHORT_DIGITS))
    with monkeypatch.context() as patch:
        interrupting_at(8, patch)
        bayesbits("demo", code=130)
    (here / "runs/demo/mine.txt").write_text("a user's own")
    output = bayesbits("demo").stdout
    assert "Before and after" in output
    assert "x fewer" in output
    assert output.rstrip().endswith("report: runs/demo/report.html")
    first = (here / "runs/demo/result.json").stat().st_mtime_ns
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


def test_a_network_is_inspected_before_any_training():
    output = bayesbits("inspect", "lenet5").stdout
    assert "features.3" in output
    assert "3,276,800" in output
    assert "classifier.3: all 10 channels stay: reaches the network's output" in output
    assert "6.25%" in output
    assert "4 layers" in output
    small = bayesbits("inspect", "resnet20", "--input-shape", "3x16x16", "--set", "num_classes=4").stdout
    assert "4 x 64" in small


def test_a_users_network_is_inspected_by_its_shape_or_its_own_example(here):
    (here / "users_inspected.py").write_text(
        "import torch\n"
        "def bare(): return torch.nn.Linear(6, 2)\n"
        "def with_example(): return torch.nn.Linear(6, 2), torch.zeros(1, 6)\n"
    )
    shown = bayesbits("inspect", "users_inspected:bare", "--input-shape", "6").stdout
    assert "2 x 6" in shown
    assert bayesbits("inspect", "users_inspected:with_example").stdout == shown
    assert "a network of your own needs it" in bayesbits("inspect", "users_inspected:bare", code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["search"], 2, "give a recipe, or both --model and --data"),
        (["serch"], 2, "No such command"),
        (["inspect", "lenet5", "--input-shape", "3x"], 2, "is not a shape"),
        (["search", "digit-lenet5"], 1, "did you mean 'digits-lenet5'?"),
        (["search", "digits-lenet5", "--set", "search.epoch=3"], 1, "did you mean search.epochs?"),
        (["search", "mnist-lenet5"], 1, "--set data.folder=FOLDER"),
        (["search", "imagenet-resnet18"], 1, "--set model.checkpoint=FILE"),
        (["search", "digits-lenet5", "--device", "abacus"], 1, "the device 'abacus' cannot be used"),
        (["inspect", "lenet"], 1, "the zoo has no network named 'lenet'"),
        (["inspect", "lenet5", "--set", "stem=cifar"], 1, "the network 'lenet5' does not take these options"),
        (["plan", "nowhere"], 1, "nowhere holds no finished run: there is no plan.json"),
        (["report", "nowhere"], 1, "nowhere holds no finished run: there is no result.json"),
    ],
)
def test_errors_are_one_message_and_an_exit_code(arguments, code, said, monkeypatch):
    monkeypatch.delenv("BAYESBITS_DATA", raising=False)
    result = bayesbits(*arguments, code=code)
    assert said in " ".join(result.stderr.replace("│", "").split())


def test_debug_shows_the_traceback():
    result = CliRunner().invoke(app, ["--debug", "plan", "nowhere"])
    assert isinstance(result.exception, FileNotFoundError)


def test_what_nobody_expected_is_said_to_be_unexpected(monkeypatch):
    def broken(*arguments, **options):
        raise KeyError("inner part")

    monkeypatch.setattr("bayesbits.cli.search.run", broken)
    result = bayesbits("search", "digits-lenet5", code=1)
    assert "unexpected error: KeyError: 'inner part'" in result.stderr
    assert "--debug" in result.stderr


def test_the_version_and_the_help():
    assert bayesbits("--version").stdout.startswith("bayesbits ")
    assert "--resume" in bayesbits("search", "--help").stdout
