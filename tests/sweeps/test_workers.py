"""What an exit code and a log say about a run."""

import pytest

from bayesbits.sweeps.workers import Ending, last_error, outcome_of


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        (0, Ending.DONE),
        (1, Ending.FAILED),
        (2, Ending.FAILED),
        (-11, Ending.FAILED),
        (-9, Ending.LOST),
        (130, Ending.INTERRUPTED),
        (143, Ending.INTERRUPTED),
        (-15, Ending.INTERRUPTED),
        (-2, Ending.INTERRUPTED),
    ],
)
def test_exit_codes(code, ending, tmp_path):
    assert outcome_of(code, tmp_path).ending is ending


def test_a_failure_has_its_reason(tmp_path):
    assert outcome_of(-11, tmp_path).reason == "its process ended by SIGSEGV"
    assert outcome_of(3, tmp_path).reason == "its process ended with exit code 3"
    (tmp_path / "log.txt").write_text("--- now\nsome words\nerror: the loader raised\nGo on with: x\n")
    assert outcome_of(1, tmp_path).reason == "the loader raised"


def test_only_the_latest_start_counts(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("--- first\nerror: old\n--- second\nTraceback\nValueError: new\n\n")
    assert last_error(log) == "ValueError: new"
    log.write_text("--- first\nerror: old\n--- second\nunexpected error: KeyError: 3\nmore\n")
    assert last_error(log) == "unexpected error: KeyError: 3 more"
    log.write_text("--- first\nerror: the data were not found. Looked in\n  here\nGo on with: bayesbits search x\n")
    assert last_error(log) == "the data were not found. Looked in here"
    log.write_text(f"--- first\nerror: {'x' * 1000}\n")
    assert last_error(log) == "x" * 400 + "..."
    log.write_text("--- first\n")
    assert last_error(log) == ""
    assert last_error(tmp_path / "none") == ""
