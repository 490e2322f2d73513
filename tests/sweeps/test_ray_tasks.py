"""Runs as tasks of a Ray cluster; those on a real local Ray are marked `check`."""

import os
import signal
import sys

import pytest

from bayesbits.sweeps import ray_tasks
from bayesbits.sweeps.entries import State, find_entries
from bayesbits.sweeps.ray_tasks import RayTasks, run_in_task, shares
from bayesbits.sweeps.scheduler import run_entries
from bayesbits.training.errors import StopSignals
from bayesbits.utils import optional_packages
from tests.sweeps.made_runs import made_runs


def test_shares_of_a_cluster():
    assert shares(16, 0, 4) == {"num_cpus": 4}
    assert shares(2, 0, 4) == {"num_cpus": 1}
    assert shares(16, 2, 4) == {"num_cpus": 4, "num_gpus": 0.5}
    assert shares(16, 8, 4) == {"num_cpus": 4, "num_gpus": 1.0}


def test_a_task_works_in_the_directory_of_the_sweep_and_writes_its_log(tmp_path, monkeypatch, capfd):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.txt").write_text("before\n")
    monkeypatch.chdir("/")

    def work(folder):
        print("in", os.getcwd(), flush=True)
        os.write(2, b"an error\n")
        return 7

    assert run_in_task(str(tmp_path / "run"), str(tmp_path), work) == 7
    print("afterwards", flush=True)
    assert (tmp_path / "run" / "log.txt").read_text().splitlines()[0] == "before"
    assert "an error" in (tmp_path / "run" / "log.txt").read_text()
    assert "an error" not in capfd.readouterr().err


def test_ray_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(optional_packages, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'a sweep on a Ray cluster needs ray; .*"bayesbits\[ray\]"'):
        RayTasks("auto", 1, len)


WORK = """
import os, sys, time
from pathlib import Path

def work(folder):
    from tests.sweeps.made_runs import finish_run
    from bayesbits import recipes
    from bayesbits.training.errors import StopSignals

    folder = Path(folder)
    recipe = recipes.load(folder / "recipe.toml")
    starts = folder / "starts"
    with starts.open("a") as file:
        file.write(f"{os.getpid()} {os.environ['OMP_NUM_THREADS']}\\n")
    if recipe.seed == 1 and len(starts.read_text().splitlines()) == 1:
        time.sleep(600)  # until it is killed
    if recipe.seed == 2:
        print("error: no luck", flush=True)
        return 1
    if recipe.seed == 3:
        with StopSignals() as stop:
            (folder / "ready").touch()
            while not stop.received:
                time.sleep(0.02)
            (folder / "search.checkpoint").touch()
            return 128 + stop.received
    finish_run(folder, recipe)
    return 0
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    (tmp_path / "made_work.py").write_text(WORK)
    paths = [str(tmp_path), os.getcwd(), *(path for path in sys.path if path.endswith("src"))]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.syspath_prepend(tmp_path)
    import made_work

    return made_work.work


@pytest.mark.check
@pytest.mark.filterwarnings("ignore")
def test_a_sweep_on_a_local_ray_survives_a_worker_that_is_killed(tmp_path, work):
    entries = find_entries(made_runs("seed=0,1,2"), tmp_path / "sweep", {})
    workers = RayTasks("local", 2, work)
    killed = []

    def observe(entry):
        starts = entries[1].folder / "starts"
        if not killed and starts.is_file() and starts.read_text().endswith("\n"):
            killed.append(int(starts.read_text().split()[0]))
            os.kill(killed[0], signal.SIGKILL)

    try:
        run_entries(entries, workers, observe, StopSignals())
    finally:
        workers.close()
    assert [entry.state for entry in entries] == [State.DONE, State.DONE, State.FAILED]
    assert len(killed) == 1
    assert entries[1].losses == 1
    starts = (entries[1].folder / "starts").read_text().splitlines()
    assert len(starts) == 2
    assert starts[0] != starts[1]
    assert starts[0].split()[1] == str(max(1, os.cpu_count() // 2))  # its share of the cores
    assert entries[2].reason == "no luck"
    assert entries[2].log.read_text() == "error: no luck\n"


@pytest.mark.check
@pytest.mark.filterwarnings("ignore")
def test_a_run_on_ray_that_is_stopped_writes_its_checkpoint(tmp_path, work):
    entries = find_entries(made_runs("seed=3,4"), tmp_path / "sweep", {})
    workers, stop = RayTasks("local", 1, work), StopSignals()

    def observe(entry):
        if (entries[0].folder / "ready").exists():
            stop.received = signal.SIGINT

    try:
        run_entries(entries, workers, observe, stop)
    finally:
        workers.close()
    assert [entry.state for entry in entries] == [State.INTERRUPTED, State.WAITING]
    assert (entries[0].folder / "search.checkpoint").exists()


def test_an_address_without_a_cluster_is_named(monkeypatch):
    monkeypatch.setattr(ray_tasks, "require_packages", lambda *_: None)
    monkeypatch.setattr(ray_tasks, "import_module", lambda _: None)  # it is not asked
    with pytest.raises(ValueError, match=r"there is no Ray cluster at '127.0.0.1:1' \(--ray\)"):
        RayTasks("127.0.0.1:1", 1, len)
