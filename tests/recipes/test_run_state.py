"""The state of a run that is not finished: its process while it runs, and the error or the kill that ended it."""

import os
import socket
import subprocess
import sys

import pytest

from bayesbits import recipes
from bayesbits.recipes.run_folder import resume_command, unfinished
from bayesbits.recipes.run_state import RunState, load_state, recorded
from bayesbits.training import Interrupted
from tests.recipes.made_data import MODULE

FAILING = (
    MODULE
    + """
fails = True

def loss(outputs, labels):
    if fails and outputs.requires_grad:
        raise RuntimeError("the labels are upside down")
    return nn.functional.cross_entropy(outputs, labels)
"""
)


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    (tmp_path / "users_failing.py").write_text(FAILING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "users_failing", raising=False)
    where = {"model": "users_failing:network", "data": "users_failing:data", "loss": "users_failing:loss"}
    return recipes.load(None, ["search.epochs=1"], **where)


def run(recipe, folder):
    return recipes.run(recipe, folder, device="cpu", progress=False, resume=True, say=lambda _: None)


def test_an_error_is_kept_with_its_place_until_the_run_goes_on(recipe, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with pytest.raises(RuntimeError, match="upside down"):
        run(recipe, folder)
    state = load_state(folder)
    assert state.error == "RuntimeError: the labels are upside down"
    assert (state.status, state.has_ended, state.command) == ("failed", True, resume_command(folder))
    assert 'users_failing.py", line 17, in loss' in state.traceback
    told = unfinished(folder, "result.json")
    assert "RuntimeError: the labels are upside down. Go on with: bayesbits search" in told
    monkeypatch.setattr(sys.modules["users_failing"], "fails", False)
    run(recipe, folder)
    assert load_state(folder) is None


def test_inside_the_folder_says_that_a_process_runs(tmp_path):
    with recorded(tmp_path, "go on"):
        state = load_state(tmp_path)
        assert (state.process, state.status, state.has_ended) == (os.getpid(), "running", False)
        (tmp_path / "recipe.toml").touch()
        assert "is not finished" in unfinished(tmp_path, "result.json")
        assert "bayesbits watch" in unfinished(tmp_path, "result.json")
        assert "Go on with" not in unfinished(tmp_path, "result.json")  # two processes must not train in one folder
    assert load_state(tmp_path) is None


def test_what_goes_on_with_post_training_is_its_own_command(tmp_path):
    (tmp_path / "recipe.toml").touch()
    (tmp_path / "float.checkpoint").touch()
    with pytest.raises(KeyboardInterrupt), recorded(tmp_path, "bayesbits posttrain mine", "post-training", 9):
        raise KeyboardInterrupt
    assert (load_state(tmp_path).stage, load_state(tmp_path).points) == ("post-training", 9)
    told = unfinished(tmp_path, "result.json")
    assert "(post-training has no point yet, and there is no result.json)" in told
    assert told.endswith("Go on with: bayesbits posttrain mine")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interrupted("search was interrupted", 15, ": resume")])
def test_an_interrupt_is_no_failure(tmp_path, error):
    with pytest.raises(type(error)), recorded(tmp_path, "go on"):
        raise error
    state = load_state(tmp_path)
    assert (state.status, state.traceback) == ("interrupted", "")
    assert state.error in ("stopped before the end", "search was interrupted")


def test_a_process_that_is_gone_was_killed(tmp_path):
    script = (
        "import sys, time; from pathlib import Path; from bayesbits.recipes.run_state import recorded\n"
        f"with recorded(Path({str(tmp_path)!r}), 'go on'): print(1, flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert child.stdout.read(1) == b"1"
    assert load_state(tmp_path).status == "running"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still in the table of processes
    assert load_state(tmp_path).status == "killed"
    child.communicate()
    state = load_state(tmp_path)
    assert (state.status, state.has_ended) == ("killed", True)
    assert f"process {child.pid} on" in state.words


def test_another_process_of_the_same_number_is_not_the_one_that_ran(tmp_path):
    here = socket.gethostname()
    assert RunState(os.getpid(), here, "long ago", "go on", "then").status == "killed"
    assert RunState(os.getpid(), f"not {here}", "long ago", "go on", "then").status == "unknown"


def test_a_state_that_cannot_be_read_is_none(tmp_path):
    (tmp_path / "state.json").write_text("{")
    assert load_state(tmp_path) is None
