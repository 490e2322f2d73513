"""Runs `bayesbits sweep`: a grid of recipes and settings, several runs at a time, in one folder."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import typer

from bayesbits.cli.console import output_console, print_line, print_status
from bayesbits.cli.sweep_display import SweepDisplay, summary_table
from bayesbits.cli.sweep_run import local_processes, run_in
from bayesbits.recipes import Recipe, load
from bayesbits.recipes.toml import Override
from bayesbits.report.comparison_page import write_comparison_page
from bayesbits.report.formatting import format_number_of
from bayesbits.sweeps.entries import Entry, State, find_entries, other_folders
from bayesbits.sweeps.float_networks import SharedFloatNetworks
from bayesbits.sweeps.grid import BUDGET, METHOD, SEED, SweepRun, make_runs, read_groups
from bayesbits.sweeps.record import PAGE, earlier_states, rows_of, write_record
from bayesbits.sweeps.scheduler import run_entries
from bayesbits.sweeps.settings import Axis, axis, read_axes
from bayesbits.sweeps.workers import Workers
from bayesbits.training import Interrupted
from bayesbits.training.errors import StopSignals

_NAMED = (
    "methods", "seeds", "latency_table", "model", "data", "task", "loss", "metric", "jobs", "ray", "device", "output",
)  # fmt: skip


@dataclass(frozen=True)
class SweepOptions:
    """What determines a sweep."""

    recipes: tuple[str, ...]
    output: Path
    overrides: tuple[str, ...] = ()
    methods: str | None = None
    seeds: str | None = None
    budgets: tuple[str, ...] = ()
    latency_table: Path | None = None
    model: str | None = None
    data: str | None = None
    task: str | None = None
    loss: str | None = None
    metric: str | None = None
    jobs: int | None = None
    ray: str | None = None
    device: str | None = None

    @property
    def command(self) -> str:
        """The command line with these options."""
        words = ["bayesbits", "sweep", *self.recipes]
        words += [word for override in self.overrides for word in ("--set", override)]
        words += [word for budget in self.budgets for word in ("--budget", budget)]
        for name in _NAMED:
            if getattr(self, name) is not None:
                words += [f"--{name.replace('_', '-')}", str(getattr(self, name))]
        return shlex.join(words)


def run_sweep(options: SweepOptions) -> None:
    """Run what is not done yet, and write the table and the page of all runs."""
    runs = planned_runs(options)
    output = options.output
    entries = find_entries(runs, output, earlier_states(output))
    _announce(entries, output)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(f"--output is {output}, and a file is there; choose another folder") from error
    record = partial(write_record, output, entries, options.command)
    record()
    signal = 0
    if any(entry.state is not State.DONE for entry in entries):
        signal = _run(entries, options, record)
    _finish(entries, options, signal)


def planned_runs(options: SweepOptions) -> list[SweepRun]:
    """Every run of the sweep, with its recipe checked."""
    axes = read_axes([f"{'.'.join(path)}={text}" for path, text in _lists(options)] + list(options.overrides))
    if options.budgets:
        axes.append(axis(BUDGET, options.budgets))
    _check_seeds(axes)
    groups = [group.with_axes(axes) for group in read_groups(options.recipes or (None,))]

    def read(recipe: str | None, overrides: Sequence[Override], budget: str | None) -> Recipe:
        return load(
            recipe, overrides, model=options.model, data=options.data, task=options.task, loss=options.loss,
            metric=options.metric, budget=budget, latency_table=options.latency_table,
        )  # fmt: skip

    return make_runs(groups, read)


def _lists(options: SweepOptions) -> list[tuple[tuple[str, ...], str]]:
    given = ((METHOD, options.methods), (SEED, options.seeds))
    return [(path, text) for path, text in given if text is not None]


def _check_seeds(axes: Sequence[Axis]) -> None:
    for found in axes:
        wrong = [one.text for one in found.settings if one.path == SEED and not isinstance(one.value, int)]
        if wrong:
            raise typer.BadParameter(f"{wrong[0]!r} is no seed; write them as 0,1,2", param_hint="--seeds")


def _announce(entries: Sequence[Entry], output: Path) -> None:
    """What will be done, before it begins."""
    done = sum(entry.state is State.DONE for entry in entries)
    print_status(
        f"{format_number_of(len(entries), 'run')} in {output}" + (f", {done} of them done before" if done else "")
    )
    for entry in entries:
        if entry.found and entry.state is not State.DONE:
            print_status(f"{entry.run.label}: {entry.found}")
    shared = SharedFloatNetworks([entry for entry in entries if entry.state is not State.DONE]).shared()
    if shared:
        print_status(f"{shared} of them start{'s' * (shared == 1)} from the float network that another one trains")
    others = other_folders(entries, output)
    if others:
        names = ", ".join(folder.name for folder in others[:3]) + (", ..." if len(others) > 3 else "")
        print_status(f"{format_number_of(len(others), 'other run')} in it, no part of this sweep: {names}")


def _run(entries: Sequence[Entry], options: SweepOptions, record: partial[Path]) -> int:
    """Run what is not done; returns the signal that has stopped it, or 0."""
    workers, jobs = _workers(options)  # first: Ray sets a handler of SIGTERM
    try:
        with StopSignals() as stop, SweepDisplay(entries, jobs) as display:

            def observe(entry: Entry | None) -> None:
                if entry is not None:
                    record()
                display.stopping = bool(stop.received)
                display.changed(entry)

            run_entries(entries, workers, observe, stop)
            return stop.received
    except KeyboardInterrupt as error:
        record()
        error.add_note(f"Go on with: {options.command}")
        raise
    finally:
        workers.close()


def _workers(options: SweepOptions) -> tuple[Workers, int]:
    if options.ray is None:
        jobs = options.jobs or 1
        return local_processes(jobs, options.device), jobs
    from bayesbits.sweeps.ray_tasks import RayTasks

    tasks = RayTasks(options.ray, options.jobs, partial(run_in, device=options.device))
    return tasks, tasks.jobs


def _finish(entries: Sequence[Entry], options: SweepOptions, signal: int) -> None:
    """Show and write the results, and say what failed or was interrupted; both end with an exit code of their own."""
    failed = [entry for entry in entries if entry.state is State.FAILED]
    try:
        _write_results(entries, options)
    finally:
        for entry in failed:
            print_status(f"failed: {entry.run.label}: {entry.reason}\n  log: {entry.log}")
    if signal:
        left = sum(entry.state is not State.DONE for entry in entries)
        raise Interrupted(
            f"{left} of {len(entries)} runs are not done; those that trained have written their checkpoints", signal,
            f"\nGo on with: {options.command}",
        )  # fmt: skip
    if failed:
        print_status(
            f"{len(failed)} of {len(entries)} runs failed; the same command runs them again: {options.command}"
        )
        raise typer.Exit(1)


def _write_results(entries: Sequence[Entry], options: SweepOptions) -> None:
    """The table and the page of the runs that are done."""
    path = write_record(options.output, entries, options.command)
    rows = rows_of(entries)
    if rows:
        console = output_console()
        console.print(summary_table(rows, console))
        print_line(f"\ntable: {path}")
        page = options.output / PAGE
        write_comparison_page([entry.folder for entry in entries if entry.state is State.DONE], page)
        print_line(f"page: {page}")
