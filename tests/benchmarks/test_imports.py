"""The benchmark of imports: it times one statement in a fresh process, after another."""

import subprocess

import pytest

from benchmarks import imports


def test_only_the_second_statement_is_timed():
    assert 0.05 <= imports.seconds_of("import time\ntime.sleep(0.5)", "time.sleep(0.05)") < 0.4


def test_a_statement_that_fails_is_an_error():
    with pytest.raises(subprocess.CalledProcessError):
        imports.seconds_of("", "import bayesbits.nothing")


def test_bytecode_is_written_and_read_whatever_the_environment_says(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    imports.seconds_of("import sys", "assert not sys.dont_write_bytecode")


def test_the_smallest_of_seven_times_is_shown_beside_that_of_torch(monkeypatch):
    times = iter([4, 2, 3, 4, 5, 6, 7, *[0.5] * 6, 0.1, *[2.0] * 6, 0.25])
    monkeypatch.setattr(imports, "seconds_of", lambda before, timed: next(times))
    rows = imports.imports(smoke=False)
    assert [(row["seconds"], row["time / torch"]) for row in rows] == [(2, 1.0), (0.1, 0.05), (0.25, 0.125)]
    assert rows[-1]["limit"] == "0.3 s"
    assert next(times, None) is None
