"""Where commands write: results to the standard output; status, warnings and errors to the standard error.

Exit codes: 0 success, 1 an error, 2 wrong usage, 130 interrupted (143 by SIGTERM). `--debug` shows tracebacks.
"""

import sys

from rich.console import Console

import bayesbits

_FILE_WIDTH = 120
_INTERRUPTED = 130


def output_console() -> Console:
    """The standard output; 120 characters wide where it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else _FILE_WIDTH)


def error_console() -> Console:
    """The standard error."""
    return Console(stderr=True)


def print_line(text: str) -> None:
    """A line of the result, as it is."""
    output_console().print(text, markup=False, highlight=False, soft_wrap=True)


def print_status(text: str) -> None:
    """A line about the progress of a command."""
    error_console().print(text, markup=False, highlight=False, soft_wrap=True)


def print_error(error: BaseException) -> None:
    """An error as one message without a traceback."""
    expected = (ValueError, TypeError, OSError, ImportError, bayesbits.TrainingError)
    message = str(error)
    if isinstance(error, KeyboardInterrupt):
        head, message = "interrupted", message or "stopped before the end"
    elif isinstance(error, bayesbits.Interrupted):
        head = "interrupted"
    elif isinstance(error, bayesbits.VerificationError):
        head = "not equal"
    elif isinstance(error, expected):
        head = "error"
    else:
        head = "unexpected error"
        message = f"{type(error).__name__}: {message}\n`bayesbits --debug COMMAND ...` shows the traceback"
    error_console().print(f"[bold red]{head}:[/] ", end="")
    for line in (message, *getattr(error, "__notes__", ())):
        print_status(line)


def exit_code(error: BaseException) -> int:
    """The exit code of the program after an error."""
    if isinstance(error, bayesbits.Interrupted):
        return 128 + error.signal
    return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
