"""How far a run is, from the last lines of its metrics: other processes and machines write them, too."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesbits.recipes import Recipe
from bayesbits.recipes.run_folder import METRICS

_TAIL = 8192  # bytes; a line has a few hundred


@dataclass(frozen=True)
class Progress:
    """The progress of a run."""

    stage: str
    """Such as "search"."""
    epoch: int
    """The finished epochs of the stage."""
    epochs: int
    """All epochs of the stage."""
    part: float
    """The finished part of all epochs of the run, from 0 to 1."""
    relative_bops: float | None = None
    """The expected bit operations in percent, where the last line has them."""

    def __str__(self) -> str:
        return f"{self.stage} {self.epoch}/{self.epochs}"


def read_progress(folder: Path, recipe: Recipe) -> Progress | None:
    """The progress of the run in a folder; None before the first line."""
    lines = last_lines(folder / METRICS)
    last = lines[-1] if lines else {}
    stages = {"float": recipe.float_training, "search": recipe.search, "finetune": recipe.finetune}
    epochs = {name: config.epochs for name, config in stages.items() if config is not None}
    if last.get("phase") not in epochs or not isinstance(last.get("epoch"), int):
        return None
    stage, epoch = last["phase"], last["epoch"]
    earlier = list(epochs)[: list(epochs).index(stage)]
    part = (sum(epochs[name] for name in earlier) + epoch) / max(1, sum(epochs.values()))
    cost = last.get("expected_relative_bops")
    return Progress(stage, epoch, epochs[stage], part, cost if isinstance(cost, float) else None)


def last_lines(path: Path) -> list[dict[str, Any]]:
    """The last lines of metrics that were written to their ends; none where the file is not there, or damaged."""
    try:
        with path.open("rb") as file:
            start = max(0, path.stat().st_size - _TAIL)
            file.seek(start)
            lines = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
        found = [json.loads(line) for line in lines[1 if start else 0 :]]  # the first one may have lost its beginning
    except (OSError, ValueError):
        return []
    return [line for line in found if isinstance(line, dict)]
