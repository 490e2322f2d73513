"""The queue of experiments: what is kept is left out, the rest runs, is measured beside, and is kept as it ends."""

import json
import os
import signal
from pathlib import Path

import pytest

from bayesbits import recipes
from bayesbits.sweeps.workers import Ending, Outcome
from experiments import queue, tasks
from experiments.keep import RESULTS, file_of, name_of
from experiments.methods import chosen
from experiments.tasks import Task, folder_name, run_tasks
from tests.sweeps.made_runs import ScriptedWorkers, finish_run


def made_task(label: str, stored: list[str], *overrides: str, kept: bool = False, fails: bool = False) -> Task:
    """A task that measures the name of its folder."""

    def measure(folder: Path) -> str:
        assert (folder / "result.json").is_file()
        if fails:
            raise OSError("no space left")
        return folder.name

    def store(found: str) -> str:
        stored.append(found)
        return "stored"

    return Task(label, recipes.load("digits-lenet5", overrides), kept, measure, store)


def test_what_is_kept_is_left_out_and_every_run_is_kept_once(tmp_path, capsys):
    stored: list[str] = []
    found = [made_task(f"run {seed}", stored, f"seed={seed}", kept=seed == 1) for seed in range(4)]
    workers = ScriptedWorkers(2)
    assert run_tasks(found, tmp_path, workers=workers) == 0
    assert workers.started == stored == ["run-0", "run-2", "run-3"]
    assert workers.most == 2
    assert "4 runs, 1 of them kept before" in capsys.readouterr().err


def test_a_run_that_ended_without_being_kept_is_kept_and_not_run_again(tmp_path):
    stored: list[str] = []
    first, second = (made_task(f"run {seed}", stored, f"seed={seed}") for seed in range(2))
    finish_run(tmp_path / folder_name(first), first.recipe)
    workers = ScriptedWorkers(1)
    assert run_tasks([first, second], tmp_path, workers=workers) == 0
    assert workers.started == ["run-1"]
    assert sorted(stored) == ["run-0", "run-1"]


def test_failures_are_named_and_the_other_runs_go_on(tmp_path, capsys):
    stored: list[str] = []
    found = [made_task(f"run {seed}", stored, f"seed={seed}", fails=seed == 0) for seed in range(3)]
    workers = ScriptedWorkers(1, {"run-1": [Outcome(Ending.FAILED, "the loss is not finite")]})
    assert run_tasks(found, tmp_path, workers=workers) == 2
    assert stored == ["run-2"]
    said = capsys.readouterr().err
    assert "not kept: run 0: no space left" in said
    assert "failed: run 1: the loss is not finite" in said


def test_a_run_is_kept_while_others_still_run(tmp_path):
    """A queue of hours may be killed at any time."""
    stored: list[str] = []
    found = [made_task(f"run {seed}", stored, f"seed={seed}") for seed in range(2)]

    class OneAfterTheOther(ScriptedWorkers):
        looks = 0

        def finished(self) -> list[tuple[Path, Outcome]]:
            """The first run ends at once, and the second one when the result of the first is stored."""
            self.looks += 1
            ends = [folder for folder in self.running if folder.name == "run-0" or stored or self.looks > 1000]
            self.running = [folder for folder in self.running if folder not in ends]
            return [(folder, self._outcome(folder)) for folder in ends]

    workers = OneAfterTheOther(2)
    assert run_tasks(found, tmp_path, workers=workers) == 0
    assert stored == ["run-0", "run-1"]
    assert workers.looks <= 1000


def test_runs_share_the_device_by_as_many_processes_as_were_asked_for(tmp_path, monkeypatch):
    asked: list[tuple[int, str | None]] = []

    def processes(jobs: int, device: str | None) -> ScriptedWorkers:
        asked.append((jobs, device))
        return ScriptedWorkers(jobs)

    monkeypatch.setattr(tasks, "local_processes", processes)
    run_tasks([made_task("run", [], "seed=1")], tmp_path, jobs=3, device="cuda:1")
    assert asked == [(3, "cuda:1")]


def test_a_signal_stops_the_queue_and_the_next_one_goes_on(tmp_path, capsys):
    stored: list[str] = []
    found = [made_task(f"run {seed}", stored, f"seed={seed}") for seed in range(2)]

    class Interrupted(ScriptedWorkers):
        def start(self, folder: Path) -> None:
            super().start(folder)
            os.kill(os.getpid(), signal.SIGTERM)

    held = Interrupted(1)
    held.holds = True
    assert run_tasks(found, tmp_path, workers=held) == 2
    assert stored == []
    assert "go on with the same command" in capsys.readouterr().err
    assert run_tasks(found, tmp_path, workers=ScriptedWorkers(1)) == 0
    assert stored == ["run-0", "run-1"]


LIST = """
[[tasks]]
runs = "runs.toml"
seeds = [0, 2]

[[tasks]]
methods = "digits-lenet5"
rows = ["LSQ 2/2", "dq"]
setting = "both"
epochs = 3
"""


@pytest.fixture
def short_list(tmp_path):
    path = tmp_path / "queue.toml"
    runs = tmp_path / "runs.toml"
    runs.write_text('[[runs]]\nrecipe = "mnist-lenet5"\nseeds = [0, 1, 2]\n')
    path.write_text(LIST)
    return path


def test_a_run_that_is_listed_twice_is_one(short_list, tmp_path):
    once = queue.read_tasks(short_list, None, tmp_path)
    short_list.write_text(short_list.read_text() * 2)
    assert [task.label for task in queue.read_tasks(short_list, None, tmp_path)] == [one.label for one in once]


def test_a_list_names_searches_and_rows_in_its_order(short_list, tmp_path):
    found = queue.read_tasks(short_list, None, tmp_path)
    assert [task.label for task in found] == [
        "mnist-lenet5-mu0.01-seed0",
        "mnist-lenet5-mu0.01-seed2",
        *(
            f"digits-lenet5: {row.name}, {setting}, 3 epochs, seed 0"
            for setting in ("plain", "tricks")
            for row in chosen(["LSQ 2/2", "dq"])
        ),
    ]
    assert not any(task.kept for task in found)
    assert all(task.kept for task in queue.read_tasks(short_list, None, RESULTS)[:2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[runs]]\nrecipe = "digits-lenet5"', r"has no \[\[tasks\]\]"),
        (
            '[[tasks]]\nrun = "evidence.toml"',
            r"number 1: it has neither runs nor methods, or both; .*files, runs, seeds",
        ),
        ('[[tasks]]\nmethods = "digits-lenet5"\nfiles = true', "number 1: unknown: files; its keys are"),
        ('[[tasks]]\nmethods = "digits-lenet5"\nrows = ["LSQ 5/5"]', "number 1: there is no row 'LSQ 5/5'"),
        ('[[tasks]]\nmethods = "digits-lenet5"\nrows = "LSQ 2/2"', r"rows is 'LSQ 2/2', and takes a list"),
        ('[[tasks]]\nmethods = "digits-lenet5"\nseeds = []', r"seeds is \[\], and takes a list, such as \[0, 1\]"),
        ('[[tasks]]\nmethods = "digits-lenet5"\nsetting = "trick"', "there is no setting 'trick'; .* tricks and both"),
        ('[tasks]\nruns = "evidence.toml"', r"has no \[\[tasks\]\]"),
        ('[[tasks]]\nruns = "nothing.toml"', r"number 1: .*\nthere is no recipe '.*nothing.toml'"),
        ('[[tasks]]\nruns = "two.toml"\nseeds = [0, 2]', r"seeds are \[0, 2\], and those of two.toml are \[0, 1\]"),
        (
            '[[tasks]]\nruns = "twice.toml"',
            "two runs would be kept as digits-lenet5-validation-mu0.01-seed0: .*=50.*=90",
        ),
        ("[[tasks]", "queue.toml: Expected ']]'"),
    ],
)
def test_a_wrong_list_is_refused_before_anything_runs(text, message, tmp_path):
    path = tmp_path / "queue.toml"
    path.write_text(text)
    (tmp_path / "two.toml").write_text('[[runs]]\nrecipe = "digits-lenet5"\nseeds = [0, 1]\n')
    same = '[[runs]]\nrecipe = "digits-lenet5"\nseeds = [0]\nset.data.validation = {}\n'
    (tmp_path / "twice.toml").write_text(same.format(50) + same.format(90))
    with pytest.raises(SystemExit, match=message):
        queue.main(["--queue", str(path), "--results", str(tmp_path), "--list"])


def test_a_search_becomes_its_file_and_the_test_of_its_onnx_files_one_of_its_own(tmp_path, monkeypatch):
    recipe = recipes.load("digits-lenet5", ["seed=3"])
    run, results = tmp_path / "run", tmp_path / "results"
    results.mkdir()
    finish_run(run, recipe, accuracy=96.5, relative_bops=1.25)
    tested = (f"{name_of(recipe)}-seed3", {"images": 7})
    monkeypatch.setattr(queue.whole_test_set, "compare", lambda folder: tested)
    assert queue.store(recipe, results, queue.measured(run, files=False)) == "96.50% at 1.250%"
    assert [path.name for path in results.iterdir()] == ["digits-lenet5-mu0.01-seed3.json"]
    queue.store(recipe, results, queue.measured(run, files=True))
    whole = json.loads((results / "whole-test-set-digits-lenet5-mu0.01-seed3.json").read_text())
    assert whole == {"images": 7}
    assert json.loads(file_of(recipe, results).read_text())["accuracy"] == 96.5


@pytest.mark.parametrize("files", [True, False])
def test_onnx_files_are_tested_where_the_list_says_so(files, tmp_path, monkeypatch):
    (tmp_path / "runs.toml").write_text('[[runs]]\nrecipe = "digits-lenet5"\nseeds = [3]\n')
    (tmp_path / "queue.toml").write_text(f'[[tasks]]\nruns = "runs.toml"\nfiles = {str(files).lower()}\n')
    monkeypatch.setattr(queue.whole_test_set, "compare", lambda folder: (folder.name, {}))
    (task,) = queue.read_tasks(tmp_path / "queue.toml", None, tmp_path)
    finish_run(tmp_path / "run", task.recipe)
    assert task.measure(tmp_path / "run")[1] == (("run", {}) if files else None)


@pytest.mark.parametrize("left", [0, 2])
def test_the_command_runs_the_list_as_its_options_say(left, short_list, tmp_path, monkeypatch):
    asked: list[dict] = []

    def run(found: list[Task], folder: Path, **options: object) -> int:
        asked.append({"folders": {task.recipe.data.folder for task in found}, "runs": folder, **options})
        return left

    monkeypatch.setattr(queue, "run_tasks", run)
    words = ["--queue", str(short_list), "--results", str(tmp_path), "--runs", "there", "--data", "/data"]
    with pytest.raises(SystemExit) as ended:
        queue.main([*words, "--jobs", "3", "--device", "cuda"])
    assert ended.value.code == (left > 0)
    assert asked == [{"folders": {"/data"}, "runs": Path("there"), "jobs": 3, "device": "cuda"}]


def test_the_list_of_the_project_can_be_read_and_its_first_searches_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.methods._cost_under", lambda *_: "1% bops")  # it needs the data
    found = queue.read_tasks(queue.QUEUE, None, RESULTS)
    labels = [task.label for task in found]
    assert len(set(labels)) == len(labels)
    evidence = [task for task in found if task.label.startswith("cifar10-vgg7-mu")]
    assert len(evidence) == 6
    assert all(task.kept for task in evidence)


def test_the_command_lists_what_is_missing(short_list, tmp_path, capsys):
    queue.main(["--queue", str(short_list), "--results", str(tmp_path), "--list"])
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == "10 of 10 runs are missing"
    assert "digits-lenet5: DQ mu=1, tricks, 3 epochs, seed 0" in printed
    assert tasks.folder_name(queue.read_tasks(short_list, None, tmp_path)[2]) == (
        "digits-lenet5-LSQ-2-2-plain-3-epochs-seed-0"
    )
