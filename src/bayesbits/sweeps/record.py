"""The file `sweep.json`: every run of a sweep with its state, and the mean and standard error of each setting."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bayesbits.recipes.run_folder import write
from bayesbits.sweeps.entries import Entry, State
from bayesbits.sweeps.summary import SummaryRow, summarize

RECORD, PAGE = "sweep.json", "sweep.html"
VERSION = 1


def rows_of(entries: Sequence[Entry]) -> list[SummaryRow]:
    """The summary of the runs that are done."""
    done = [entry for entry in entries if entry.state is State.DONE]
    return summarize([entry.folder for entry in done], {entry.folder: entry.run.settings for entry in done})


def write_record(output: Path, entries: Sequence[Entry], command: str) -> Path:
    """Write `sweep.json`; returns its path."""
    runs = [
        {
            "name": entry.folder.name,
            "recipe": entry.run.recipe.name,
            "settings": dict(entry.run.settings),
            "seed": entry.run.recipe.seed,
            "state": str(entry.state),
            "reason": entry.reason,
        }
        for entry in entries
    ]
    rows = [row.to_json() for row in rows_of(entries)]
    path = output / RECORD
    content = {"version": VERSION, "command": command, "runs": runs, "rows": rows}
    write(path, json.dumps(content, indent=2, default=str) + "\n")
    return path


def earlier_states(output: Path) -> dict[str, str]:
    """The states of runs that an earlier sweep in this folder recorded, by the names of their folders."""
    try:
        content: Any = json.loads((output / RECORD).read_text(encoding="utf-8"))
        return {str(run["name"]): str(run["state"]) for run in content["runs"]}
    except (OSError, ValueError, LookupError, TypeError):
        return {}  # the folders say what is done; the record only has words for what is not
