"""Progress of training: a bar with the time left on a terminal, a line every few seconds elsewhere, or nothing."""

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID
from rich.progress import Task as Shown
from rich.text import Text

_LINE_SECONDS = 10.0
_LEAST_BAR, _MOST_BAR, _DIGITS = 8, 40, 6
_SHORT_NAMES = {"expected_relative_bops": "BOPs", "task_loss": "task"}
_SHORT_NAMES |= {"validation_accuracy": "acc"}
_SHORT_NAMES |= {"mu_relative_bops": "mu", "target_relative_bops": "target", "decided_relative_bops": "decided"}
_PERCENT = {"expected_relative_bops", "target_relative_bops", "decided_relative_bops"}
_METRICS = ("validation_", "accuracy")  # before what else is written
_FIRST, _LAST = ("loss", "expected_relative_bops"), ("task_loss", "penalty")


class ProgressReport:
    """Shows on the standard error how far training is.

    `done` and `total` are counted in epochs, with fractions: those are known for every loader.
    """

    def __init__(self, phase: str, total: int, *, show: bool) -> None:
        self.phase, self.total, self.show = phase, total, show
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._began = self._last_line = self._updated = time.monotonic()
        self._first = self._done = 0.0
        self._values: dict[str, float] = {}

    def __enter__(self) -> Self:
        if self.show and self._console.is_terminal:
            self._bar = Progress(_Line(self), console=self._console)
            self._task = self._bar.add_task(self.phase, total=self.total)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, done: float) -> None:
        """The first step starts now, after so many epochs: the time left is computed from here."""
        self._first = self._done = done
        self._began = self._updated = time.monotonic()

    def update(self, done: float, values: Mapping[str, float], *, now: bool = False) -> None:
        """Show the number of epochs done and the latest values; `now` writes a line at once."""
        if not self.show:
            return
        moment = time.monotonic()
        self._done, self._updated, self._values = done, moment, {**self._values, **values}
        if self._bar is not None:
            self._bar.update(self._task, completed=done)
        elif now or moment - self._last_line >= _LINE_SECONDS:
            self._last_line = moment
            left = self._seconds_left()
            time_left = "" if left is None else f", {duration(left)} left"
            text = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            print(f"{self.phase}: epoch {done:.1f} of {self.total}{time_left}  {text}", file=sys.stderr, flush=True)

    def say(self, message: str) -> None:
        """Print a line."""
        if self.show:
            self._console.print(message, markup=False, highlight=False, soft_wrap=True)

    def line(self) -> Text:
        """The progress of the phase in one line of the terminal."""
        moment, left = time.monotonic(), self._seconds_left()
        if left is None:
            clock = duration(moment - self._began)
        else:
            clock = f"{duration(max(0.0, left - (moment - self._updated)))} left"
        head, part = f"{self.phase} {self._done:.1f}/{self.total}", self._done / max(self.total, 1)
        plain = self._console.options.ascii_only or self._console.no_color or self._console.color_system is None
        return bar_line(head, part, clock, self._values, self._console.width, plain=plain)

    def _seconds_left(self) -> float | None:
        """The estimate of the latest update; None where there is none yet, and at the end."""
        advanced = self._done - self._first
        if advanced <= 0 or self._done >= self.total:
            return None
        return (self._updated - self._began) * (self.total - self._done) / advanced


class _Line(ProgressColumn):
    """The whole line as one column: rich itself would cut any column that does not fit."""

    def __init__(self, report: ProgressReport) -> None:
        super().__init__()
        self._report = report

    def render(self, _task: Shown) -> Text:
        return self._report.line()


def bar_line(
    head: str, part: float, clock: str, values: Mapping[str, float], width: int, *, plain: bool = False
) -> Text:
    """Head, bar, time and values in at most `width` characters; values that do not fit are left out.

    Loss and cost are kept first, then the time, then metrics, then the other values. The bar takes the remaining width,
    and is left out last of all. `plain` draws it without special characters.
    """
    numbers = {
        name: _number(name, f"{value:.3g}%" if name in _PERCENT else f"{value:.4g}") for name, value in values.items()
    }
    wanted = [name for name in reversed(_FIRST) if name in numbers] + ["clock"]
    others = [name for name in numbers if name not in (*_FIRST, *_LAST)]
    wanted += sorted(others, key=lambda name: not name.startswith(_METRICS)) + [one for one in _LAST if one in numbers]
    texts = {"clock": clock, **numbers}
    room = width - len(head) - 1 - _LEAST_BAR
    chosen = set()
    for name in wanted:
        if len(texts[name]) + 2 > room:
            break
        chosen.add(name)
        room -= len(texts[name]) + 2
    shown = [texts[name] for name in ("clock", *_FIRST, *wanted) if name in chosen]
    length = min(_MOST_BAR, room + _LEAST_BAR)
    bar = _bar(length, part, plain) if length >= _LEAST_BAR else Text()
    line = Text.assemble(head, " ", bar, *(f"  {text}" for text in dict.fromkeys(shown)))
    line.rstrip()
    line.truncate(width)
    return line


def _number(name: str, value: str) -> str:
    """A value with its name, padded so that the line keeps its width."""
    return f"{_SHORT_NAMES.get(name, name.replace('_', ' '))} {value:{_DIGITS}}"


def _bar(length: int, part: float, plain: bool) -> Text:
    done = round(length * min(1.0, max(0.0, part)))
    full, empty = ("#", "-") if plain else ("━", "━")
    return Text.assemble((full * done, "bar.complete"), (empty * (length - done), "bar.back"))


def duration(seconds: float) -> str:
    """Seconds as hours, minutes and seconds: 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
