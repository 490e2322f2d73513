"""Sweeps from the command line: what they print and write, and how they go on after an end of any kind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bayesbits import recipes
from bayesbits.cli import sweep as implementation
from bayesbits.cli.sweep import SweepOptions
from bayesbits.sweeps.workers import Ending, Outcome
from tests.cli.invoke import bayesbits
from tests.sweeps.made_runs import ScriptedWorkers

# A tiny network, and data that are slow until there is a file "go".
USERS = """
import os, time, torch
from torch import nn

def network():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

class Batches:
    def __len__(self):
        return 4

    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        for _ in range(4):
            if not os.path.exists("go"):
                time.sleep(0.1)
            inputs = torch.randn(16, 6, generator=generator)
            yield inputs, inputs[:, :3].argmax(1)

def loaders():
    return Batches(), Batches()
"""
OWN = ["sweep", "--model", "users_own:network", "--data", "users_own:loaders", "--set", "search.epochs=100"]
OWN += [
    "--set",
    "search.log_steps=1",
    "--set",
    "search.mu=0.01,0.1",
    "--output",
    "out",
    "--jobs",
    "2",
    "--device",
    "cpu",
]
NAMES = [f"users_own_network-mu={mu}-seed=0" for mu in ("0.01", "0.1")]


def wait_until(condition, what):
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline, f"{what}: nothing happened for ten minutes"
        time.sleep(0.05)


def trained(folder: Path) -> bool:
    """Whether a run has made a step of the search."""
    return (folder / "metrics.jsonl").is_file() and '"train"' in (folder / "metrics.jsonl").read_text()


def process_of(folder: Path) -> int:
    """The number of the process that runs a run: the last one that its log names."""
    lines = [line for line in (folder / "log.txt").read_text().splitlines() if line.startswith("--- ")]
    return int(lines[-1].split()[-1])


@pytest.mark.check
def test_a_sweep_survives_a_killed_run_and_ctrl_c_and_goes_on(here):
    """Real processes: one run is killed and goes on by itself, Ctrl-C keeps checkpoints, the same command finishes."""
    (here / "users_own.py").write_text(USERS)
    folders = [here / "out" / name for name in NAMES]
    with (here / "shown.txt").open("w") as shown:
        sweep = subprocess.Popen([sys.executable, "-m", "bayesbits", *OWN], stdout=shown, stderr=shown)
        wait_until(lambda: all(map(trained, folders)), "training")
        os.kill(process_of(folders[1]), signal.SIGKILL)
        wait_until(lambda: "its process was killed" in (here / "shown.txt").read_text(), "the killed run")
        sweep.send_signal(signal.SIGINT)
        assert sweep.wait(120) == 130
    text = (here / "shown.txt").read_text()
    assert "2 of 2 runs are not done" in text
    assert f"Go on with: bayesbits {' '.join(OWN[:1])} --set search.epochs=100" in text
    assert (folders[0] / "search.checkpoint").is_file()
    assert not any((folder / "result.json").exists() for folder in folders)
    (here / "go").touch()
    output = bayesbits(*OWN)
    assert "was interrupted: goes on from its checkpoint of 'search'" in output.stderr
    assert "resumes" in (folders[0] / "log.txt").read_text() or trained(folders[0])
    content = json.loads((here / "out/sweep.json").read_text())
    assert [run["state"] for run in content["runs"]] == ["done", "done"]
    assert [row["settings"] for row in content["rows"]] == [{"search.mu": 0.01}, {"search.mu": 0.1}]
    for folder in folders:
        result = recipes.Result.load(folder / "result.json")
        assert f"{result.accuracy:.2f}%" in output.stdout
        bayesbits("report", folder)
    assert "page: out/sweep.html" in output.stdout
    page = (here / "out/sweep.html").read_text()
    assert "2 runs compared" in page
    assert all(f"mu={mu}" in page for mu in ("0.01", "0.1"))
    times = [(folder / "result.json").stat().st_mtime_ns for folder in folders]
    again = bayesbits(*OWN)
    assert "2 runs in out, 2 of them done before" in again.stderr
    assert times == [(folder / "result.json").stat().st_mtime_ns for folder in folders]


@pytest.mark.check
def test_a_run_on_a_local_ray_whose_worker_is_killed_goes_on(here):
    (here / "users_own.py").write_text(USERS)
    folder = here / "out" / NAMES[0]
    command = [sys.executable, "-m", "bayesbits", *OWN[:-4], "--ray", "local"]
    with (here / "shown.txt").open("w") as shown:
        sweep = subprocess.Popen(command, stdout=shown, stderr=shown)
        wait_until(lambda: (folder / "search.checkpoint").is_file() and trained(folder), "training")
        os.kill(process_of(folder), signal.SIGKILL)
        wait_until(lambda: "its worker died" in (here / "shown.txt").read_text(), "the killed worker")
        (here / "go").touch()
        assert sweep.wait(300) == 0, (here / "shown.txt").read_text()
    log = (folder / "log.txt").read_text()
    assert log.count("--- ") == 2
    assert log.count("the search starts from scratch") == 2
    for name in NAMES:
        assert recipes.Result.load(here / "out" / name / "result.json").seed == 0
        assert (here / "out" / name / "report.html").exists()
    assert "page: out/sweep.html" in (here / "shown.txt").read_text()


def scripted(monkeypatch, outcomes=None, jobs=2):
    """Sweeps with workers that train nothing."""
    workers = ScriptedWorkers(jobs, outcomes)
    monkeypatch.setattr(implementation, "local_processes", lambda *_: workers)
    return workers


def test_runs_that_share_a_float_network_are_announced(here, monkeypatch):
    scripted(monkeypatch)
    command = ["sweep", "digits-lenet5", "--set", "search.mu=0.01,0.1", "--output", "mus"]
    assert "1 of them starts from the float network that another" in bayesbits(*command).stderr
    assert "from the float network" not in bayesbits(*command).stderr  # all are done
    assert "2 of them start from" in bayesbits(*command[:-1], "more", "--seeds", "0,1").stderr


SEEDS = ["sweep", "digits-lenet5", "--seeds", "0,1,2", "--output", "out"]


def test_a_failure_is_named_with_its_log_and_the_exit_code_is_1(here, monkeypatch):
    failed = "digits-lenet5-seed=1"
    scripted(monkeypatch, {failed: [Outcome(Ending.FAILED, "no luck")]})
    shown = bayesbits(*SEEDS, code=1)
    assert f"failed: seed=1: no luck\n  log: out/{failed}/log.txt" in shown.stderr
    assert "1 of 3 runs failed; the same command runs them again: bayesbits sweep digits-lenet5" in shown.stderr
    assert "page: out/sweep.html" in shown.stdout
    assert json.loads((here / "out/sweep.json").read_text())["rows"][0]["seeds"] == [0, 2]
    workers = scripted(monkeypatch)
    shown = bayesbits(*SEEDS)
    assert "seed=1: failed before: starts again, as it has no checkpoint" in shown.stderr
    assert workers.started == [failed]


def test_nothing_runs_where_anything_in_the_grid_is_wrong(here, monkeypatch):
    workers = scripted(monkeypatch)
    shown = bayesbits("sweep", "digits-lenet5", "--set", "search.mu=0.1,-1", "-o", "out", code=1)
    assert "SearchConfig.mu is -1" in shown.stderr
    assert not workers.started
    assert not (here / "out").exists()


def test_several_recipes_and_files_of_runs_are_one_sweep(here, monkeypatch):
    (here / "runs.toml").write_text('[[runs]]\nrecipe = "mnist-lenet5"\ngrid.search.mu = [0.01, 0.1]\n')
    workers = scripted(monkeypatch)
    shown = bayesbits("sweep", "digits-lenet5", "runs.toml", "--seeds", "0,1", "-o", "out")
    assert "6 runs in out" in shown.stderr
    assert sorted(workers.started) == sorted(
        ["digits-lenet5-seed=0", "digits-lenet5-seed=1"]
        + [f"mnist-lenet5-mu={mu}-seed={seed}" for mu in ("0.01", "0.1") for seed in (0, 1)]
    )
    assert "mnist-lenet5, mu=0.01" in shown.stdout


def test_a_signal_ends_with_its_exit_code_and_the_way_on(monkeypatch):
    workers = scripted(monkeypatch)
    workers.holds = True
    start = workers.start

    def interrupted(folder):
        start(folder)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(workers, "start", interrupted)
    shown = bayesbits(*SEEDS, code=143)
    assert "3 of 3 runs are not done" in shown.stderr
    assert "Go on with: bayesbits sweep digits-lenet5 --seeds 0,1,2 --output out" in shown.stderr


def test_other_runs_in_the_folder_are_left_alone(monkeypatch):
    scripted(monkeypatch)
    bayesbits(*SEEDS)
    shown = bayesbits("sweep", "digits-lenet5", "--set", "search.mu=0.5", "--output", "out")
    assert "3 other runs in it, no part of this sweep: digits-lenet5-seed=0" in shown.stderr


def test_the_output_is_a_folder(here):
    (here / "out").write_text("")
    assert "a file is there" in bayesbits(*SEEDS, code=1).stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "give a recipe, or both --model and --data"),
        (["digits-lenet5", "--seeds", "0,x"], 2, "'x' is no seed"),
        (["digits-lenet5", "--seeds", "0", "--set", "seed=1"], 1, "seed is given twice"),
        (["digits-lenet5", "--jobs", "0"], 2, "should be greater than or equal to 1"),
        (["digit-lenet5"], 1, "did you mean 'digits-lenet5'"),
    ],
)
def test_wrong_usage_is_one_message(arguments, code, said):
    shown = bayesbits("sweep", *arguments, code=code)
    assert said in " ".join(shown.stderr.replace("│", "").split())


def test_the_command_of_a_sweep_has_all_of_its_options():
    options = SweepOptions(
        ("a", "b c"), Path("out"), ("search.mu=1,2",), "lsq", "0,1", ("1% bops",), Path("t"), "m:n", "d:l",
        "regression", "mse", "r2", 3, "auto", "cpu",
    )  # fmt: skip
    assert options.command == (
        "bayesbits sweep a 'b c' --set search.mu=1,2 --budget '1% bops' --methods lsq --seeds 0,1 --latency-table t "
        "--model m:n --data d:l --task regression --loss mse --metric r2 --jobs 3 --ray auto --device cpu --output out"
    )
    assert SweepOptions(("a",), Path("o")).command == "bayesbits sweep a --output o"
