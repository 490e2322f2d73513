"""The runs of a sweep in its folder: what was done before, and in which folder each run is or will be.

A folder belongs to a run by its recipe, not by its name, so that a sweep can be extended: the runs that are already
there are found, whatever the new ones are called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from bayesbits.recipes import Result
from bayesbits.recipes.run_folder import CHECKPOINTS, LOG, RECIPE, REPORT, RESULT, first_difference, load_recipe
from bayesbits.recipes.toml import to_table
from bayesbits.sweeps.grid import SweepRun


class State(StrEnum):
    """Where a run of a sweep stands."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass
class Entry:
    """A run of a sweep with its folder and its state."""

    run: SweepRun
    folder: Path
    state: State = State.WAITING
    found: str = ""
    """What was found in the folder when the sweep began, in words; empty where there was nothing."""
    reason: str = ""
    """Why the run failed, or was started again."""
    result: Result | None = None
    """The result of a run that is done."""
    losses: int = 0
    """How often the process of the run was killed."""
    started: float | None = None
    """When the run was started by this sweep, in seconds of `time.monotonic`."""
    seconds: float | None = None
    """How long it ran in this sweep."""

    @property
    def last_stage(self) -> str | None:
        """The last stage of which there is a checkpoint."""
        stages = [name.removesuffix(".checkpoint") for name in CHECKPOINTS if (self.folder / name).is_file()]
        return stages[-1] if stages else None

    @property
    def log(self) -> Path:
        """What the run printed."""
        return self.folder / LOG


def find_entries(runs: Iterable[SweepRun], output: Path, earlier: Mapping[str, str]) -> list[Entry]:
    """An entry for each run; `earlier` has the states that the sweep recorded before, by the names of folders."""
    runs = list(runs)
    there = _recipes_in(output)
    folders = _matching(runs, there)
    taken = {folder.name.lower() for folder in there}
    entries = []
    for index, run in enumerate(runs):
        folder = folders.get(index)
        entries.append(
            Entry(run, _new_folder(output, run.name, taken)) if folder is None else _found(run, folder, earlier)
        )
    return entries


def other_folders(entries: Iterable[Entry], output: Path) -> list[Path]:
    """The folders of runs in the folder of a sweep that are no part of it."""
    own = {entry.folder for entry in entries}
    return [folder for folder in _recipes_in(output) if folder not in own]


def finished_result(folder: Path) -> Result | None:
    """The result of a run that has ended with its report; None where it has not, or where the result is damaged."""
    try:
        return Result.load(folder / RESULT) if (folder / REPORT).is_file() else None
    except (ValueError, FileNotFoundError):
        return None


def _recipes_in(output: Path) -> dict[Path, dict[str, Any] | None]:
    """The recipe of every run in a folder as a table; None where it cannot be read."""
    found: dict[Path, dict[str, Any] | None] = {}
    for path in sorted(output.glob(f"*/{RECIPE}")):
        try:
            found[path.parent] = to_table(load_recipe(path.parent))
        except (ValueError, OSError):
            found[path.parent] = None
    return found


def _matching(runs: list[SweepRun], there: Mapping[Path, dict[str, Any] | None]) -> dict[int, Path]:
    """The folder of each run, by its index: first by equal recipes, then by those whose differences do not matter."""
    tables = [to_table(run.recipe) for run in runs]
    free = {folder: table for folder, table in there.items() if table is not None}
    found: dict[int, Path] = {}
    for equal in (lambda one, other: one == other, lambda one, other: first_difference(one, other) is None):
        for index, table in enumerate(tables):
            folder = next((folder for folder, other in free.items() if equal(other, table)), None)
            if index not in found and folder is not None:
                found[index] = folder
                del free[folder]
    return found


def _new_folder(output: Path, name: str, taken: set[str]) -> Path:
    """A folder that no other run has."""
    found, number = name, 1
    while found.lower() in taken:
        number += 1
        found = f"{name}-{number}"
    taken.add(found.lower())
    return output / found


def _found(run: SweepRun, folder: Path, earlier: Mapping[str, str]) -> Entry:
    result = finished_result(folder)
    if result is not None:
        return Entry(run, folder, State.DONE, found="done before", result=result)
    entry = Entry(run, folder)
    stage = entry.last_stage
    goes_on = "starts again, as it has no checkpoint" if stage is None else f"goes on from its checkpoint of {stage!r}"
    what = "failed before" if earlier.get(folder.name) == State.FAILED else "was interrupted"
    entry.found = f"{what}: {goes_on}"
    return entry
