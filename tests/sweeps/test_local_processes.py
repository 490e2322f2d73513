"""Runs as processes: their share of the machine, their logs, and how they are ended."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from bayesbits.sweeps.local_processes import LocalProcesses, environment_of
from bayesbits.sweeps.workers import Ending

# A run that writes its checkpoint when it is asked to end, as a search does.
CHILD = """
import os, signal, sys, time
def stop(*_):
    open("checkpoint", "w").write("saved")
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
print("threads", os.environ["OMP_NUM_THREADS"], flush=True)
if sys.argv[1] == "fail":
    sys.exit("error: no luck")
if sys.argv[1] == "wait":
    open("ready", "w").close()
    time.sleep(60)
"""


def commands(kind):
    return lambda folder: [sys.executable, "-S", "-c", f"import os; os.chdir({str(folder)!r})\n{CHILD}", kind]


def wait_until(condition):
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline, "nothing happened for ten minutes"
        time.sleep(0.01)


def ended(workers):
    """All endings, once there is one."""
    found = []
    wait_until(lambda: bool(found.extend(workers.finished()) or found))
    return found


def folder(tmp_path, name="run"):
    (tmp_path / name).mkdir()
    return tmp_path / name


def test_a_run_ends_and_its_log_is_appended_to(tmp_path):
    run = folder(tmp_path)
    workers = LocalProcesses(2, commands("end"), gpus=0)
    for _ in range(2):
        workers.start(run)
        assert workers.free == 1
        ((place, outcome),) = ended(workers)
        assert (place, outcome.ending) == (run, Ending.DONE)
        assert workers.free == 2
    assert (run / "log.txt").read_text().count("threads") == 2


def test_a_failure_has_the_reason_of_its_log(tmp_path):
    workers = LocalProcesses(1, commands("fail"), gpus=0)
    workers.start(folder(tmp_path))
    ((_, outcome),) = ended(workers)
    assert (outcome.ending, outcome.reason) == (Ending.FAILED, "no luck")


def test_runs_that_are_stopped_write_their_checkpoints(tmp_path):
    runs = [folder(tmp_path, "a"), folder(tmp_path, "b")]
    workers = LocalProcesses(2, commands("wait"), gpus=0)
    for run in runs:
        workers.start(run)
    wait_until(lambda: all((run / "ready").exists() for run in runs))
    assert workers.finished() == []
    workers.stop()
    found = []
    wait_until(lambda: len(found.extend(workers.finished()) or found) == 2)
    assert {outcome.ending for _, outcome in found} == {Ending.INTERRUPTED}
    assert all((run / "checkpoint").read_text() == "saved" for run in runs)


def test_ctrl_c_in_the_terminal_does_not_reach_the_runs(tmp_path):
    run = folder(tmp_path)
    workers = LocalProcesses(1, commands("wait"), gpus=0)
    workers.start(run)
    wait_until((run / "ready").exists)
    ((_, process),) = workers._processes.values()
    assert os.getpgid(process.pid) != os.getpgid(0)
    workers.stop(now=True)
    ((_, outcome),) = ended(workers)
    assert outcome.ending is Ending.LOST
    assert not (run / "checkpoint").exists()


def test_a_killed_process_is_lost(tmp_path):
    run = folder(tmp_path)
    workers = LocalProcesses(1, commands("wait"), gpus=0)
    workers.start(run)
    wait_until((run / "ready").exists)
    ((_, process),) = workers._processes.values()
    os.kill(process.pid, signal.SIGKILL)
    ((_, outcome),) = ended(workers)
    assert outcome.ending is Ending.LOST


def test_each_process_has_its_share_of_cores_and_gpus_and_caches_of_its_own():
    found = [environment_of(job, 3, {"PATH": "p"}, cores=8, gpus=2) for job in range(3)]
    assert [one["OMP_NUM_THREADS"] for one in found] == ["2"] * 3
    assert [one["MKL_NUM_THREADS"] for one in found] == ["2"] * 3
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == ["0", "1", "0"]
    assert {one["PATH"] for one in found} == {"p"}
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert len({one[name] for one in found}) == 3
    assert environment_of(1, 3, {}, 8, 2)["TRITON_CACHE_DIR"] == found[1]["TRITON_CACHE_DIR"]  # also the next time


def test_what_the_user_has_set_is_kept_or_divided():
    given = {"OMP_NUM_THREADS": "5", "CUDA_VISIBLE_DEVICES": "4, 6", "TORCHINDUCTOR_CACHE_DIR": "/cache"}
    found = environment_of(1, 2, given, cores=8, gpus=2)
    assert (found["OMP_NUM_THREADS"], found["CUDA_VISIBLE_DEVICES"]) == ("5", "6")
    assert Path(found["TORCHINDUCTOR_CACHE_DIR"]) == Path("/cache/job-1")


@pytest.mark.parametrize(("jobs", "cores", "threads"), [(1, 8, "8"), (4, 2, "1"), (2, 5, "2")])
def test_cores_are_shared(jobs, cores, threads):
    assert environment_of(0, jobs, {}, cores, 0)["OMP_NUM_THREADS"] == threads


def test_a_single_process_has_all_gpus_and_the_usual_caches():
    assert environment_of(0, 1, {}, 4, 4).keys() == {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}
    assert "CUDA_VISIBLE_DEVICES" not in environment_of(0, 2, {}, 4, 1)
