"""Errors as one message: what is expected to go wrong ends the program without a traceback.

Exit codes: 0 all is well, 1 an error, 2 wrong usage, 130 interrupted (143 by SIGTERM). `--debug` shows tracebacks.
"""

from typing import Any

import typer
from typer.core import TyperGroup

from bayesbits.cli.console import errors
from bayesbits.deploy.verification.result import VerificationError
from bayesbits.training import Interrupted, TrainingError

_EXPECTED = (ValueError, TypeError, OSError, ImportError, TrainingError)
_USAGE: tuple[Any, ...] = (typer.BadParameter.__base__, typer.Exit, typer.Abort)  # typer's own, which it shows itself
_INTERRUPTED = 130


class Commands(TyperGroup):
    """The commands, with one place where their errors arrive."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an error is said on the standard error, and becomes an exit code."""
        try:
            return super().invoke(ctx)
        except _USAGE:
            raise
        except (Exception, KeyboardInterrupt) as error:
            if ctx.params.get("debug"):
                raise
            _show(error)
            raise typer.Exit(_code(error)) from error


def _show(error: BaseException) -> None:
    message = str(error)
    if isinstance(error, KeyboardInterrupt):
        head, message = "interrupted", message or "stopped before the end"
    elif isinstance(error, Interrupted):
        head = "interrupted"
    elif isinstance(error, VerificationError):
        head = "not equal"
    elif isinstance(error, _EXPECTED):
        head = "error"
    else:
        head, message = "unexpected error", f"{type(error).__name__}: {message}\n`bayesbits --debug ...` shows where"
    errors().print(f"[bold red]{head}:[/] ", end="")
    for line in (message, *getattr(error, "__notes__", ())):
        errors().print(line, markup=False, highlight=False, soft_wrap=True)


def _code(error: BaseException) -> int:
    if isinstance(error, Interrupted):
        return 128 + error.signal
    return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
