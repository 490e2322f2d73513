"""What a sweep shows: a live table in a terminal, lines elsewhere, and its results at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bayesbits.cli.console import error_console, print_status
from bayesbits.cli.tables import fit_table
from bayesbits.report.formatting import format_bytes, format_duration, format_number_of
from bayesbits.sweeps.entries import Entry, State
from bayesbits.sweeps.estimate import cost_text, estimate_text
from bayesbits.sweeps.progress import Progress, read_progress
from bayesbits.sweeps.summary import SummaryRow
from bayesbits.training.progress import duration

_STYLES = {State.DONE: "green", State.FAILED: "bold red", State.INTERRUPTED: "yellow", State.RUNNING: "bold"}
_OTHER_LINES = 6  # of the screen: the head of the table, the line below it, and the shell's
_LINE_SECONDS = 60.0  # between two lines about progress where there is no terminal
_REFRESH_SECONDS = 1.0
_STOPPING = "; stopping: the runs write their checkpoints (Ctrl-C again: end them now)"


class SweepDisplay:
    """Shows the state of every run on the standard error while the sweep runs."""

    def __init__(self, entries: Sequence[Entry], jobs: int, console: Console | None = None) -> None:
        self._entries, self._jobs = entries, jobs
        self._console = error_console() if console is None else console
        self._live: Live | None = None
        self._shown = time.monotonic()
        self.stopping = False
        """Whether the sweep waits for its runs to write checkpoints."""

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(self.render(), console=self._console, auto_refresh=False, redirect_stdout=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self.render(), refresh=True)
            self._live.stop()

    def changed(self, entry: Entry | None) -> None:
        """Show a change of an entry, or, several times a second, how far the runs are."""
        now = time.monotonic()
        if self._live is not None:
            if entry is not None and entry.state in (State.WAITING, State.FAILED):  # the table has no room for reasons
                self._live.console.print(_sentence(entry), markup=False, highlight=False)
            if entry is not None or now - self._shown >= _REFRESH_SECONDS:
                self._shown = now
                self._live.update(self.render(), refresh=True)
        elif entry is not None:
            print_status(_sentence(entry))
        elif now - self._shown >= _LINE_SECONDS:
            self._shown = now
            running = [entry for entry in self._entries if entry.state is State.RUNNING]
            told = [f"{one.run.label}: {_stage(one, _progress(one))}" for one in running]
            print_status("; ".join([self.counts(), *told]))

    def render(self) -> Group:
        """The table, with as many runs as the screen has room for, and a line with numbers."""
        progress = {id(entry): _progress(entry) for entry in self._entries if entry.state is State.RUNNING}
        shown = _most_wanted(self._entries, max(3, self._console.height - _OTHER_LINES))
        hidden = len(self._entries) - len(shown)
        rows = [_cells(entry, progress.get(id(entry))) for entry in shown]
        labels = [entry.run.label for entry in shown]
        table = fit_table(self._console, labels, lambda names: _table(names, shown, rows))
        more = f"{hidden} more; " if hidden else ""
        note = _STOPPING if self.stopping and progress else ""
        left = "" if self.stopping else self._time_left([one for one in progress.values() if one is not None])
        return Group(table, Text(f"{more}{self.counts()}{left}{note}"))

    def counts(self) -> str:
        """How many runs are in which state."""
        numbers = Counter(entry.state for entry in self._entries)
        words = [f"{numbers[state]} {state}" for state in State if numbers[state]]
        return f"{format_number_of(len(self._entries), 'run')}: {', '.join(words)}"

    def _time_left(self, progress: Sequence[Progress]) -> str:
        """An estimate from the runs that this sweep has finished; empty as long as there is none."""
        times = [entry.seconds for entry in self._entries if entry.state is State.DONE and entry.seconds is not None]
        numbers = Counter(entry.state for entry in self._entries)
        left = numbers[State.WAITING] + numbers[State.RUNNING] - sum(one.part for one in progress)
        if not times or left <= 0:
            return ""
        return f"; about {format_duration(left * sum(times) / len(times) / self._jobs)} left"


def _most_wanted(entries: Sequence[Entry], number: int) -> list[Entry]:
    """The entries that are shown where not all can be, in their order: what runs and failed, and their neighbors."""
    first = (State.RUNNING, State.FAILED, State.INTERRUPTED)
    active = [place for place, entry in enumerate(entries) if entry.state in first]
    near = max((place for place in active if entries[place].state is State.RUNNING), default=len(entries) - 1)
    others = sorted(
        (place for place in range(len(entries)) if place not in active), key=lambda place: abs(place - near)
    )
    return [entries[place] for place in sorted((active + others)[:number])]


def _table(names: Sequence[str], entries: Sequence[Entry], rows: Sequence[tuple[str, ...]]) -> Table:
    metric = next((entry.result.scores[0].name for entry in entries if entry.result is not None), "metric")
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("run", overflow="fold")
    table.add_column("state", no_wrap=True)
    for heading in (metric, "BOPs", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, entry, (state, *numbers) in zip(names, entries, rows, strict=True):
        table.add_row(Text(name), Text(state, style=_STYLES.get(entry.state, "dim")), *numbers)
    return table


def _cells(entry: Entry, progress: Progress | None) -> tuple[str, ...]:
    """State, metric, cost and time of a run."""
    score = cost = ""
    if entry.result is not None:
        score, cost = entry.result.scores[0].text, f"{entry.result.relative_bops:.3g}%"
    elif progress is not None and progress.relative_bops is not None:
        cost = f"{progress.relative_bops:.3g}%"
    seconds = entry.seconds
    if entry.state is State.RUNNING and entry.started is not None:
        seconds = time.monotonic() - entry.started
    elif entry.result is not None and seconds is None:
        seconds = entry.result.seconds
    return _stage(entry, progress), score, cost, "" if seconds is None else duration(seconds)


def _stage(entry: Entry, progress: Progress | None) -> str:
    """The state of a run; of one that runs, the stage that it is in."""
    if entry.state is State.RUNNING:
        return "starting" if progress is None else str(progress)
    return str(entry.state)


def _progress(entry: Entry) -> Progress | None:
    return read_progress(entry.folder, entry.run.recipe)


def _sentence(entry: Entry) -> str:
    """A line about a run whose state has changed."""
    label, score = entry.run.label, None if entry.result is None else entry.result.scores[0]
    if entry.state is State.RUNNING:
        return f"{label}: starts" if entry.last_stage is None else f"{label}: goes on from {entry.last_stage!r}"
    if entry.state is State.DONE and entry.result is not None and score is not None:
        cost = f"{entry.result.relative_bops:.3g}% of the bit operations"
        return f"{label}: done, {score.name} {score.text}, {cost}, {duration(entry.seconds or 0)}"
    if entry.state is State.WAITING:
        return f"{label}: {entry.reason}; it is started again, and goes on from its last checkpoint"
    return f"{label}: {entry.state}" + (f": {entry.reason}" if entry.state is State.FAILED else "")


def summary_table(rows: Sequence[SummaryRow], console: Console) -> Table:
    """Mean and standard error of every setting."""
    several = len({row.recipe for row in rows}) > 1
    metrics = dict.fromkeys(row.metric for row in rows)
    metric = "metric" if len(metrics) > 1 else rows[0].metric
    labels = [", ".join(part for part in (row.recipe * (several or not row.label), row.label) if part) for row in rows]

    validated = any(row.validation is not None for row in rows)

    def table_of(names: Sequence[str], wide: bool) -> Table:
        table = Table(title="Mean and standard error over seeds", title_justify="left")
        table.add_column("settings", overflow="fold")
        heads = [*(["method"] * wide), metric, *(["validation"] * validated), "BOPs", *(["weights", "time"] * wide)]
        for heading in (*heads, "seeds"):
            table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
        for name, row in zip(names, rows, strict=True):
            score = f"{row.metric} " * (len(metrics) > 1) + row.score_text
            held_back = "-" if row.validation is None else estimate_text(row.validation, row.unit)
            size, seconds = format_bytes(row.weight_bytes.mean), format_duration(row.seconds.mean)
            cells = [*([row.method] * wide), score, *([held_back] * validated), cost_text(row.relative_bops)]
            table.add_row(Text(name), *cells, *([size, seconds] * wide), str(len(row.seeds)))
        return table

    return fit_table(console, labels, lambda names: table_of(names, True), lambda names: table_of(names, False))
