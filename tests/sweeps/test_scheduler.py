"""The loop of a sweep: what is started when, what is started again, and what a signal does."""

import pytest

from bayesbits.sweeps.entries import State, find_entries
from bayesbits.sweeps.scheduler import MOST_LOSSES, run_entries
from bayesbits.sweeps.workers import Ending, Outcome
from bayesbits.training.errors import StopSignals
from tests.sweeps.made_runs import ScriptedWorkers, finish_run, made_runs

FAILED, LOST = Outcome(Ending.FAILED, "no luck"), Outcome(Ending.LOST, "killed")


def run(entries, workers, stop=None, observe=lambda entry: None):
    run_entries(entries, workers, observe, stop or StopSignals(), seconds=0.0)


def test_what_is_done_is_skipped_and_the_rest_runs_as_workers_are_free(tmp_path):
    runs = made_runs("seed=0,1,2,3,4")
    finish_run(tmp_path / runs[1].name, runs[1].recipe)
    entries = find_entries(runs, tmp_path, {})
    workers, seen = ScriptedWorkers(2), []
    run(entries, workers, observe=lambda entry: seen.append((entry.run.name, entry.state)) if entry else None)
    assert workers.started == [runs[place].name for place in (0, 2, 3, 4)]
    assert workers.most == 2
    assert all(entry.state is State.DONE and entry.result.accuracy == 97.0 for entry in entries)
    assert seen[:3] == [(runs[0].name, State.RUNNING), (runs[2].name, State.RUNNING), (runs[0].name, State.DONE)]
    assert (tmp_path / runs[0].name / "recipe.toml").exists()


def test_a_failure_does_not_stop_the_others(tmp_path):
    entries = find_entries(made_runs("seed=0,1,2"), tmp_path, {})
    run(entries, ScriptedWorkers(1, {entries[0].folder.name: [FAILED]}))
    assert [(entry.state, entry.reason) for entry in entries] == [
        (State.FAILED, "no luck"), (State.DONE, ""), (State.DONE, ""),
    ]  # fmt: skip


def test_a_run_that_ends_without_a_result_has_failed(tmp_path):
    (entry,) = find_entries(made_runs(), tmp_path, {})
    run([entry], ScriptedWorkers(1, {entry.folder.name: [Outcome(Ending.DONE, "nothing")]}))
    assert (entry.state, entry.reason) == (State.FAILED, "it ended without a result")


def test_a_run_whose_process_was_killed_goes_on_at_once_but_not_for_ever(tmp_path):
    entries = find_entries(made_runs("seed=0,1"), tmp_path, {})
    first, second = (entry.folder.name for entry in entries)
    workers = ScriptedWorkers(1, {first: [LOST], second: [LOST] * MOST_LOSSES})
    run(entries, workers)
    assert workers.started == [first, first] + [second] * MOST_LOSSES
    assert [entry.state for entry in entries] == [State.DONE, State.FAILED]
    assert entries[1].reason == "killed"


def test_a_signal_ends_what_runs_and_starts_nothing_more(tmp_path):
    entries = find_entries(made_runs("seed=0,1,2"), tmp_path, {})
    workers, stop = ScriptedWorkers(2), StopSignals()
    workers.holds = True

    def observe(entry):
        if entry is not None and entry is entries[1]:
            stop.received = 2

    run(entries, workers, stop, observe)
    assert workers.stops == [False]
    assert [entry.state for entry in entries] == [State.INTERRUPTED, State.INTERRUPTED, State.WAITING]


def test_a_second_signal_ends_the_runs_at_once(tmp_path):
    entries = find_entries(made_runs("seed=0,1"), tmp_path, {})
    workers = ScriptedWorkers(1)
    workers.holds = True

    def observe(entry):
        if entry is None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(entries, workers, observe=observe)
    assert workers.stops == [True]
    assert [entry.state for entry in entries] == [State.INTERRUPTED, State.WAITING]


def test_an_error_of_the_sweep_itself_lets_runs_write_their_checkpoints(tmp_path):
    entries = find_entries(made_runs(), tmp_path, {})
    workers = ScriptedWorkers(1)
    workers.holds = True

    def observe(entry):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run(entries, workers, observe=observe)
    assert workers.stops == [False]


def test_a_run_that_is_killed_while_the_sweep_stops_is_not_started_again(tmp_path, monkeypatch):
    entries = find_entries(made_runs("seed=0,1"), tmp_path, {})
    workers, stop, looks = ScriptedWorkers(1), StopSignals(), []
    workers.holds = True
    monkeypatch.setattr(workers, "_outcome", lambda folder: LOST)

    def observe(entry):
        stop.received = 15
        looks.append(entry)
        assert len(looks) < 100, "the sweep does not end"

    run(entries, workers, stop, observe)
    assert workers.started == [entries[0].folder.name]
    assert [entry.state for entry in entries] == [State.WAITING, State.WAITING]
