"""Runs of experiments as one queue: what has results is left out, the others run several at a time, as in a sweep.

Every run has a folder, so that one that was stopped goes on, and is kept as soon as it ends. What is measured of a
finished run, such as its ONNX files on the test set, is measured on the CPU while the next ones train.
"""

import argparse
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesbits.cli.sweep_display import SweepDisplay
from bayesbits.cli.sweep_run import local_processes
from bayesbits.recipes import Recipe
from bayesbits.report.formatting import format_number_of
from bayesbits.sweeps.entries import Entry, State, find_entries
from bayesbits.sweeps.grid import SweepRun
from bayesbits.sweeps.scheduler import run_entries
from bayesbits.sweeps.workers import Workers
from bayesbits.training.errors import StopSignals


@dataclass(frozen=True)
class Task:
    """A run of a recipe, and what becomes of its results."""

    label: str
    """What the run is called."""
    recipe: Recipe
    kept: bool
    """Whether its results are there already."""
    measure: Callable[[Path], Any]
    """What is kept of the finished run in a folder."""
    store: Callable[[Any], str]
    """Adds that to the files of results; returns what to print."""
    again: str = ""
    """Why a run whose results are there runs again, and of which: in another folder, as the old one has its recipe."""


def run_tasks(
    tasks: Sequence[Task], folder: Path, *, jobs: int = 1, device: str | None = None, workers: Workers | None = None
) -> int:
    """Run what is not kept yet.

    Args:
        tasks: The runs, in the order in which they start.
        folder: The folder of the folders of the runs.
        jobs: How many run at a time.
        device: The device, such as "cuda". By default a GPU if there is one.
        workers: What runs them; by default processes of this machine.

    Returns:
        The number of runs that are not kept at the end, as they failed or were interrupted.
    """
    left = [task for task in tasks if not task.kept]
    say(f"{format_number_of(len(tasks), 'run')}, {len(tasks) - len(left)} of them kept before")
    if not left:
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    entries = entries_of(left, folder)
    task_of = {id(entry): task for entry, task in zip(entries, left, strict=True)}
    keeper, ended = Keeper(), 0
    workers = workers or local_processes(jobs, device)
    try:
        for entry in entries:
            if entry.state is State.DONE:
                keeper.keep(entry, task_of[id(entry)])
        with StopSignals() as stop, SweepDisplay(entries, jobs) as display:

            def observe(entry: Entry | None) -> None:
                display.stopping = bool(stop.received)
                display.changed(entry)
                if entry is not None and entry.state is State.DONE:
                    keeper.keep(entry, task_of[id(entry)])
                keeper.store_what_is_measured()

            run_entries(entries, workers, observe, stop)
            ended = stop.received
    finally:
        workers.close()
        keeper.close()
    for entry in entries:
        if entry.state is State.FAILED:
            say(f"failed: {entry.run.label}: {entry.reason}\n  log: {entry.log}")
    if ended:
        say("stopped; go on with the same command")
    return len(left) - keeper.stored


class Keeper:
    """Measures finished runs one after the other beside the main thread, which stores what was measured."""

    def __init__(self) -> None:
        self.stored = 0
        """How many runs were stored."""
        self._pool = ThreadPoolExecutor(1)
        self._waiting: list[tuple[Task, Future[Any]]] = []

    def keep(self, entry: Entry, task: Task) -> None:
        """Measure a finished run as soon as those before it are measured."""
        self._waiting.append((task, self._pool.submit(task.measure, entry.folder)))

    def store_what_is_measured(self) -> None:
        """Add what was measured since the last call to the files of results."""
        done = [one for one in self._waiting if one[1].done()]
        self._waiting = [one for one in self._waiting if one not in done]
        for task, future in done:
            try:
                say(f"{task.label}: {task.store(future.result())}")
                self.stored += 1
            except Exception as error:  # the others go on
                traceback.print_exc()
                say(f"not kept: {task.label}: {error}")

    def close(self) -> None:
        """Wait for what is being measured, and store it."""
        self._pool.shutdown(wait=True)
        self.store_what_is_measured()


def entries_of(tasks: Sequence[Task], folder: Path) -> list[Entry]:
    """The runs of tasks with their folders; those that run again lie in a folder for each reason."""
    found: dict[int, Entry] = {}
    for again in dict.fromkeys(task.again for task in tasks):
        own = [place for place, task in enumerate(tasks) if task.again == again]
        runs = [SweepRun(folder_name(tasks[place]), tasks[place].recipe, {}, tasks[place].label) for place in own]
        inside = folder / path_text(f"again {again}") if again else folder
        found |= dict(zip(own, find_entries(runs, inside, {}), strict=True))
    return [found[place] for place in range(len(tasks))]


def folder_name(task: Task) -> str:
    """The name of a new folder for a run."""
    return path_text(task.label)


def path_text(text: str) -> str:
    """A text without what is no good in a path."""
    return re.sub(r"[^\w.]+", "-", text).strip("-")


def number_of_jobs(text: str) -> int:
    """The value of `--jobs`."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of runs from 1")
    return int(text)


@contextmanager
def wrong_options() -> Iterator[None]:
    """Inside, what is wrong with options or files ends the program with a message in place of a traceback."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise SystemExit(str(error)) from error


def say(text: str) -> None:
    """Print a line to the standard error, where the display is."""
    print(text, file=sys.stderr, flush=True)
