"""Where commands write: results to the standard output, everything else to the standard error."""

import sys

from rich.console import Console

_WIDTH_OF_FILES = 120


def results() -> Console:
    """The standard output; wide enough for tables where it is no terminal."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES)


def errors() -> Console:
    """The standard error."""
    return Console(stderr=True)


def say(text: str) -> None:
    """A line about what goes on."""
    errors().print(text, markup=False, highlight=False, soft_wrap=True)
