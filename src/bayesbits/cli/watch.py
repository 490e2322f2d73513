"""Runs `bayesbits watch`: a live view of a run in the terminal, from the files that the run writes."""

import time
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bayesbits.cli.console import output_console
from bayesbits.cli.tensorboard import EventWriter
from bayesbits.recipes.metrics import Score
from bayesbits.report import read_run
from bayesbits.report.headline import progress
from bayesbits.report.run_data import Run
from bayesbits.report.training_curves import Stage
from bayesbits.utils.short_names import shorten_names

_BARS, _PLAIN_BARS = "▁▂▃▄▅▆▇█", " .:-=+*#"
_SPARK = 32
_ROWS = {
    "task_loss": "task loss",
    "expected_relative_bops": "expected BOPs, %",
    "relative_bops": "counted BOPs, %",
    "target_relative_bops": "target, %",
    "mu_relative_bops": "mu",
}


def run_watch(folder: Path, seconds: float, once: bool, log_folder: Path | None = None) -> None:
    """Show the run, again and again, until it ends or Ctrl-C is pressed; `once`, or into a file, one time.

    With `log_folder` everything is also written there, for TensorBoard.
    """
    console = output_console()
    events = None if log_folder is None else EventWriter(folder, log_folder)
    try:
        if once or not console.is_terminal:
            _update(events)
            console.print(view(read_run(folder), console))
        else:
            _watch(folder, seconds, console, events)
    finally:
        if events is not None:
            events.close()


def _update(events: EventWriter | None) -> None:
    if events is not None:
        events.update()


def _watch(folder: Path, seconds: float, console: Console, events: EventWriter | None) -> None:
    with Live(view(read_run(folder), console), console=console, auto_refresh=False, screen=False) as live:
        while True:
            _update(events)
            run = read_run(folder)
            live.update(view(run, console), refresh=True)
            if run.has_ended:
                break
            time.sleep(seconds)


def view(run: Run, console: Console) -> RenderableType:
    """One picture of a run: where it is, its values with their course, and the bits of its tensors."""
    plain = console.options.ascii_only
    parts: list[RenderableType] = [Text(_state(run), style="bold")]
    stage = run.curves.stages[-1] if run.curves.stages else None
    if stage is not None:
        parts.append(_values(stage, plain))
        parts.append(_bits(run, console))
    if run.result is not None:
        parts += [Text(f"test {score.name} {score.text}{_before(score)}") for score in run.result.scores]
        parts += [Text(run.result.verdict)] if run.result.verdict else []
    failed = run.whereabouts if run.unfinished and run.has_ended else ""
    parts += [Text(problem, style="red") for problem in (run.incomplete, *run.problems, failed) if problem]
    return Group(*parts)


def _before(score: Score) -> str:
    return "" if score.float_text is None else f" (float {score.float_text})"


def _state(run: Run) -> str:
    if not run.unfinished:
        return f"{run.name}: finished"
    ended = f"{run.state.status} " if run.state is not None and run.state.has_ended else ""
    reached = progress(run)
    if reached is None:
        return f"{run.name}: {f'{ended}before its first step' if ended else 'nothing is written yet'}"
    return f"{run.name}: {f'{ended}in ' if ended else ''}{reached[0]} ({reached[1]:.0f}%)"


def _values(stage: Stage, plain: bool) -> Table:
    table = Table("", "now", "over the stage", box=None, padding=(0, 2, 0, 0))
    points = (*stage.points, *stage.evaluations)
    names = dict.fromkeys(name for point in points for name in point.values)
    for name in names:
        words = _ROWS.get(name) or (name.replace("_", " ") if name.startswith("validation_") else None)
        if words is not None:
            values = [point.values[name] for point in points if name in point.values]
            table.add_row(words, f"{values[-1]:.4g}", sparkline(values, plain))
    return table


def sparkline(values: list[float], plain: bool = False) -> str:
    """The course of values in one line of at most 32 characters."""
    size = max(1, -(-len(values) // _SPARK))
    means = [sum(values[at : at + size]) / len(values[at : at + size]) for at in range(0, len(values), size)]
    low, high = min(means), max(means)
    bars = _PLAIN_BARS if plain else _BARS
    if high == low:
        return bars[len(bars) // 2] * len(means)
    return "".join(bars[min(len(bars) - 1, int(len(bars) * (value - low) / (high - low)))] for value in means)


def _bits(run: Run, console: Console) -> RenderableType:
    """The bits of every tensor by the latest gates, in as many columns as fit; empty without gates."""
    gates = next((stage.gates for stage in run.curves.stages if stage.gates), ())
    if not gates:
        return Text("")
    bits = gates[-1].bits
    names = shorten_names(list(bits), 30)
    cells = [f"{name:<{max(map(len, names))}} {value:>2}" for name, value in zip(names, bits.values(), strict=True)]
    columns = max(1, min(len(names), console.width // (len(cells[0]) + 3)))
    grid = Table.grid(padding=(0, 3, 0, 0))
    rows = -(-len(cells) // columns)
    room = max(3, console.height - 10) if console.is_terminal else rows
    for row in range(min(rows, room)):
        grid.add_row(*(cells[at] if at < len(cells) else "" for at in range(row, len(cells), rows)))
    left = len(cells) - sum(1 for at in range(len(cells)) if at % rows < room)
    more = [Text(f"and {left} more; a larger window shows them")] if left else []
    return Group(Text("\nbits of every tensor"), grid, *more)
