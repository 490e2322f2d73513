"""Progress for people: a bar with the time left on a terminal, now and then a line elsewhere, or nothing."""

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_LINE_SECONDS = 10.0


class ProgressReport:
    """Says on the standard error how far training is.

    `done` and `total` are counted in epochs, with fractions: those are known for every loader.
    """

    def __init__(self, phase: str, total: int, *, show: bool) -> None:
        self.phase, self.total, self.show = phase, total, show
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._began = self._last_line = time.monotonic()
        self._first = 0.0

    def __enter__(self) -> Self:
        if self.show and self._console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("epoch {task.completed:.1f} of {task.total:g}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[values]}"),
            )
            self._bar = Progress(*columns, console=self._console)
            self._task = self._bar.add_task(self.phase, total=self.total, values="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, done: float) -> None:
        """The first step comes now, with so many epochs done before: the time left is reckoned from here."""
        self._first, self._began = done, time.monotonic()

    def update(self, done: float, values: Mapping[str, float], *, now: bool = False) -> None:
        """Tell how many epochs are done, and the latest numbers; `now` writes a line whenever the last one was."""
        if not self.show:
            return
        text = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        if self._bar is not None:
            self._bar.update(self._task, completed=done, values=text)
            return
        moment = time.monotonic()
        if now or moment - self._last_line >= _LINE_SECONDS:
            self._last_line = moment
            left = self._left(done, moment - self._began)
            print(f"{self.phase}: epoch {done:.1f} of {self.total}{left}  {text}", file=sys.stderr, flush=True)

    def say(self, message: str) -> None:
        """A line of its own."""
        if self.show:
            self._console.print(message, markup=False, highlight=False, soft_wrap=True)

    def _left(self, done: float, seconds: float) -> str:
        advanced = done - self._first
        if advanced <= 0 or done >= self.total:
            return ""
        return f", {duration(seconds * (self.total - done) / advanced)} left"


def duration(seconds: float) -> str:
    """Seconds as people read them: 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
