"""A progress bar on the standard error, where that is a terminal, for work that takes longer than a few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # rich is imported where a bar is made, which keeps the import of bayesbits short
    from rich.console import Console

PATIENCE = 2.0  # seconds: shorter work shows nothing


@contextmanager
def progress_bar(
    what: str, total: int, console: Console | None = None, *, shown: bool = True
) -> Iterator[Callable[..., None]]:
    """Yields a function to be called after each part, with the part's name where it has one."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True) if console is None else console
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal))
    task = bar.add_task(escape(what), total=total)
    start = time.monotonic()

    def advance(name: str = "") -> None:
        bar.update(task, advance=1, description=escape(f"{what}: {name}" if name else what))
        if not bar.live.is_started and time.monotonic() - start > PATIENCE:
            bar.start()

    try:
        yield advance
    finally:
        bar.stop()
