"""One run of a sweep in its process: alone in its folder, and gone where the sweep is gone."""

import os
import subprocess
import sys
import threading

from bayesbits.cli.sweep_run import _alone, command_of, run_in


def test_the_command_names_the_folder_and_this_process(here):
    assert command_of(here, None)[1:] == ["-m", "bayesbits.cli.sweep_run", str(here), str(os.getpid())]
    assert command_of(here, "cuda:1")[-1] == "cuda:1"


def test_the_exit_code_is_that_of_the_search(here, capsys):
    assert run_in(str(here)) == 1  # there is no recipe
    shown = capsys.readouterr().err
    assert shown.startswith("--- ")
    assert f"process {os.getpid()}" in shown
    assert "there is no recipe" in shown


def test_a_folder_that_another_process_works_on_is_waited_for(here, capsys):
    entered = threading.Event()

    def work():
        with _alone(here):
            entered.set()

    with _alone(here):
        thread = threading.Thread(target=work)
        thread.start()
        assert not entered.wait(0.2)
    assert entered.wait(60)
    thread.join()
    assert "another process works on this run" in capsys.readouterr().err


def test_a_run_ends_where_the_sweep_that_started_it_is_gone(here):
    nobody = 2**22 + 1  # larger than any number of a process
    process = subprocess.run(
        [sys.executable, "-m", "bayesbits.cli.sweep_run", str(here), str(nobody)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert process.returncode in (-15, 143, 1)
    assert "the sweep that started this run is gone" in process.stderr
