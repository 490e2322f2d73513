"""The summary of a sweep: for each setting the mean and the standard error over its seeds.

`seedless_key` says which runs differ in the seed alone, and `Estimate` averages over them, here and in the report.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesbits.recipes import Recipe, Result
from bayesbits.recipes.metrics import Score
from bayesbits.recipes.run_folder import METRICS, RESULT, load_recipe, unfinished
from bayesbits.recipes.toml import to_table
from bayesbits.sweeps.estimate import Estimate, estimate_text
from bayesbits.sweeps.grid import short_keys
from bayesbits.sweeps.progress import last_lines
from bayesbits.sweeps.settings import Setting, leaves, value_text

# Settings that say nothing about a result: where data are, how often something is written, and texts.
_LEFT_OUT = {"folder", "workers", "checkpoint_seconds", "log_steps", "evaluate_epochs", "latency_table"}
_METHOD = "spec.method"
_LEFT_OUT_AT_THE_TOP = {"seed", "name", "description", "source"}


@dataclass(frozen=True)
class SummaryRow:
    """The results of one setting with all of its seeds."""

    recipe: str
    """The name of the recipe."""
    method: str
    """The method, as the results call it."""
    data: str
    """The name of the data."""
    model: str
    """The name of the network."""
    settings: Mapping[str, Any]
    """The settings in which this row differs from others, by key."""
    seeds: tuple[int, ...]
    folders: tuple[Path, ...]
    """The folders of the runs, one for each seed."""
    metric: str
    """The name of the main metric."""
    unit: str
    """Its unit: "%", or empty."""
    higher_is_better: bool
    score: Estimate
    """The main metric on the test set."""
    float_score: Estimate | None
    """The main metric of the float network; None where a search started from scratch."""
    validation: Estimate | None
    """The main metric on examples held back from training, after the last epoch; None where there are none."""
    relative_bops: Estimate
    """In percent."""
    weight_bytes: Estimate
    seconds: Estimate
    """The time of training."""

    @property
    def label(self) -> str:
        """The settings in a few words."""
        return _words(self.settings)

    @property
    def own_label(self) -> str:
        """The settings without the method, for where that is named anyway."""
        return _words({key: value for key, value in self.settings.items() if key != _METHOD})

    @property
    def score_text(self) -> str:
        """The main metric with its standard error."""
        return estimate_text(self.score, self.unit)

    def to_json(self) -> dict[str, Any]:
        """The row as plain data."""
        parts = {"score": self.score, "float_score": self.float_score, "validation": self.validation}
        parts |= {"relative_bops": self.relative_bops, "weight_bytes": self.weight_bytes, "seconds": self.seconds}
        plain: dict[str, Any] = {"recipe": self.recipe, "method": self.method, "data": self.data, "model": self.model}
        plain |= {"settings": dict(self.settings), "seeds": list(self.seeds)}
        plain |= {"metric": self.metric, "unit": self.unit, "higher_is_better": self.higher_is_better}
        plain |= {name: None if part is None else part.to_json() for name, part in parts.items()}
        return plain | {"runs": [folder.name for folder in self.folders]}


def _words(settings: Mapping[str, Any]) -> str:
    words = zip(short_keys(settings), settings.values(), strict=True)
    return ", ".join(f"{key}={value_text(value)}" for key, value in words)


def summarize(
    folders: Sequence[str | Path], settings: Mapping[Path, Mapping[str, Any]] | None = None
) -> list[SummaryRow]:
    """The rows of finished runs, in the order of their first folders.

    Args:
        folders: The folders of the runs.
        settings: The settings that distinguish the runs, by folder. By default those in which their recipes differ.

    Raises:
        FileNotFoundError: If a run is not finished.
        ValueError: If a file is damaged.
    """
    runs = [_read(Path(folder)) for folder in folders]
    groups: dict[str, list[_Run]] = {}
    for run in runs:
        groups.setdefault(run.key, []).append(run)
    return [
        _row(group, _differences(group[0], runs) if settings is None else settings[group[0].folder])
        for group in groups.values()
    ]


@dataclass(frozen=True)
class _Run:
    folder: Path
    result: Result
    data: str
    model: str
    settings: tuple[Setting, ...]
    validation: float | None

    @property
    def key(self) -> str:
        """Equal for runs that differ in the seed alone."""
        return _key(self.result.recipe, self.settings)


def _read(folder: Path) -> _Run:
    if not (folder / RESULT).is_file():
        raise FileNotFoundError(unfinished(folder, RESULT))
    result, recipe = Result.load(folder / RESULT), load_recipe(folder)
    if not result.scores:
        raise ValueError(f"{folder / RESULT} has neither metrics nor an accuracy")
    validation = _validation(folder, result.scores[0].name)
    return _Run(folder, result, recipe.data.name, recipe.model.name, _settings(recipe), validation)


def seedless_key(name: str, recipe: Recipe) -> str:
    """A text that is equal for runs of a recipe, by the name in their results, that differ in the seed alone."""
    return _key(name, _settings(recipe))


def _key(name: str, settings: Iterable[Setting]) -> str:
    return json.dumps([name, {setting.key: setting.value for setting in settings}], sort_keys=True, default=str)


def _settings(recipe: Recipe) -> tuple[Setting, ...]:
    """The settings of a recipe that a result can depend on."""
    return tuple(one for one in leaves(to_table(recipe)) if not _is_left_out(one.path))


def _validation(folder: Path, metric: str) -> float | None:
    """The last evaluation of a run on its validation data."""
    key = f"validation_{metric.lower().replace(' ', '_')}"
    found = [line[key] for line in last_lines(folder / METRICS) if isinstance(line.get(key), int | float)]
    return found[-1] if found else None


def _is_left_out(path: tuple[str, ...]) -> bool:
    return path[-1] in (_LEFT_OUT_AT_THE_TOP if len(path) == 1 else _LEFT_OUT) and len(path) <= 2


def _differences(run: _Run, runs: Iterable[_Run]) -> dict[str, Any]:
    """The settings of a run that others of the same recipe do not have."""
    others = [
        {one.key: value_text(one.value) for one in other.settings}
        for other in runs
        if other.result.recipe == run.result.recipe
    ]
    return {
        one.key: one.value
        for one in run.settings
        if any(other.get(one.key) != value_text(one.value) for other in others)
    }


def _row(runs: Sequence[_Run], settings: Mapping[str, Any]) -> SummaryRow:
    runs = sorted(runs, key=lambda run: run.result.seed)
    results = [run.result for run in runs]
    first: Score = results[0].scores[0]
    floats = [one.scores[0].float_value for one in results]
    validations = [run.validation for run in runs]
    return SummaryRow(
        recipe=results[0].recipe,
        method=results[0].method,
        data=runs[0].data,
        model=runs[0].model,
        settings=settings,
        seeds=tuple(one.seed for one in results),
        folders=tuple(run.folder for run in runs),
        metric=first.name,
        unit=first.unit,
        higher_is_better=first.higher_is_better,
        score=Estimate.of(one.scores[0].value for one in results),
        float_score=None if None in floats else Estimate.of(value for value in floats if value is not None),
        validation=None if None in validations else Estimate.of(one for one in validations if one is not None),
        relative_bops=Estimate.of(one.relative_bops for one in results),
        weight_bytes=Estimate.of(one.weight_bytes for one in results),
        seconds=Estimate.of(one.seconds for one in results),
    )
