"""Errors are one message with its notes, each kind with its exit code; files get lines of 120 characters."""

import signal

import pytest

import bayesbits as bb
from bayesbits.cli.console import exit_code, output_console, print_error, print_line, print_status


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (ValueError("mu is -1"), "error: mu is -1\n", 1),
        (FileNotFoundError("no plan.json"), "error: no plan.json\n", 1),
        (bb.TrainingError("the loss is nan"), "error: the loss is nan\n", 1),
        (bb.VerificationError("conv differs"), "not equal: conv differs\n", 1),
        (bb.Interrupted("saved", signal.SIGTERM), "interrupted: saved\n", 143),
        (bb.Interrupted("saved", signal.SIGINT), "interrupted: saved\n", 130),
        (KeyboardInterrupt(), "interrupted: stopped before the end\n", 130),
        (KeyboardInterrupt("2 of 3 points"), "interrupted: 2 of 3 points\n", 130),
    ],
)
def test_an_error_is_one_message_and_an_exit_code(error, message, code, capsys):
    print_error(error)
    assert capsys.readouterr().err == message
    assert exit_code(error) == code


def test_notes_follow_the_message_and_an_unexpected_error_has_its_type(capsys):
    error = KeyError("[bold]inner")  # which is no markup
    error.add_note("Go on with: bayesbits search")
    print_error(error)
    assert capsys.readouterr().err == (
        "unexpected error: KeyError: '[bold]inner'\n"
        "`bayesbits --debug COMMAND ...` shows the traceback\n"
        "Go on with: bayesbits search\n"
    )


def test_results_and_status_go_to_different_streams_unchanged(capsys):
    long = "[red]1 2 " * 40
    print_line(long)
    print_status(f"{long}status")
    written = capsys.readouterr()
    assert written.out == f"{long}\n"
    assert written.err == f"{long}status\n"
    assert output_console().width == 120
