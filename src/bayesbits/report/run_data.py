"""Reads the folder of a finished run: result, recipe, plan, topology, training curves and verification.

Everything on the page comes from here. A file that is missing, damaged, or from another run is an error that names it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isclose
from pathlib import Path
from typing import Any, TypeVar

from bayesbits.cost import Cost, CostModel
from bayesbits.deploy.verification.result import Verification
from bayesbits.recipes import Recipe, Result
from bayesbits.recipes.run_folder import METRICS, PLAN, RECIPE, RESULT, TOPOLOGY, VERIFICATION, load_recipe, unfinished
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Topology

_TOLERANCE = 1e-6  # of relative bit operations that were written to a file and read again
_MOST_POINTS = 300  # of a training curve; more cannot be distinguished
_NUMBERS = ("relative_bops", "seconds", "mu", "seed", "epochs", "float_epochs", "finetune_epochs")
Part = TypeVar("Part")


@dataclass(frozen=True)
class Point:
    """A point of the training curves."""

    epoch: float
    """The number of epochs of the stage that were finished."""
    task_loss: float | None
    """The mean task loss since the previous point; None where it was not finite."""
    relative_bops: float | None
    """The expected relative bit operations in percent; None where the stage learns no bits."""


@dataclass(frozen=True)
class Stage:
    """The curves of one stage: float training, search or fine-tuning."""

    name: str
    """Such as "search"."""
    epochs: int
    points: tuple[Point, ...]
    """In the order of training."""


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    recipe: Recipe
    recipe_text: str
    """The recipe file, from which the run can be repeated."""
    result: Result
    topology: Topology
    plan: Plan
    cost: Cost
    """The cost of the compressed network."""
    float_cost: Cost
    """The cost of the float network."""
    stages: tuple[Stage, ...]
    """The training curves; empty where no metrics were written."""
    verification: Verification | None
    """The verification of the deployed network; None where it was not verified."""


def read_run(folder: str | Path) -> Run:
    """Read a finished run; raises an error that names the file which is missing, damaged, or from another run."""
    folder = Path(folder)
    for name in (RESULT, RECIPE, PLAN, TOPOLOGY):
        if not (folder / name).is_file():
            raise FileNotFoundError(unfinished(folder, name))
    result = _read(folder / RESULT, _result)
    topology, plan = _read(folder / TOPOLOGY, Topology.load), _read(folder / PLAN, Plan.load)
    model = CostModel(topology)
    cost = _read(folder / PLAN, lambda _path: model.count(plan))
    if not isclose(cost.relative_bops, result.relative_bops, rel_tol=_TOLERANCE):
        raise ValueError(
            f"{folder / PLAN} needs {cost.relative_bops:.4g}% of the bit operations and {folder / RESULT} says "
            f"{result.relative_bops:.4g}%: the two files are from different runs. `bayesbits search` writes both"
        )
    recipe_text = _read(folder / RECIPE, lambda path: path.read_text(encoding="utf-8"))
    epochs = {"float": result.float_epochs, "search": result.epochs, "finetune": result.finetune_epochs}
    metrics, verification = folder / METRICS, folder / VERIFICATION
    return Run(
        folder=folder,
        recipe=load_recipe(folder),
        recipe_text=recipe_text,
        result=result,
        topology=topology,
        plan=plan,
        cost=cost,
        float_cost=model.dense(),
        stages=read_training_curves(metrics, epochs) if metrics.is_file() else (),
        verification=_verification(verification, topology) if verification.is_file() else None,
    )


def _read(path: Path, read: Callable[[Path], Part]) -> Part:
    """Read a file; an error of the reader gets the name of the file."""
    try:
        return read(path)
    except ValueError as error:
        where = "" if str(path) in str(error) else f"{path} cannot be used: "
        raise ValueError(f"{where}{error}") from error


def _result(path: Path) -> Result:
    """A result in which every value that the page formats as a number is one."""
    result = Result.load(path)
    for name in _NUMBERS:
        value = getattr(result, name)
        if not isinstance(value, int | float):
            raise ValueError(f"{name} is {value!r}; it must be a number")
    if not result.scores:
        raise ValueError("it has neither metrics nor an accuracy")
    for score in result.scores:
        if not isinstance(score.value, int | float) or not isinstance(score.float_value, int | float | None):
            raise ValueError(
                f"the metric {score.name} is {score.value!r}, and {score.float_value!r} for the float network; both "
                "must be numbers"
            )
    if not isinstance(result.versions, Mapping):
        raise ValueError(f"versions is {result.versions!r}; it must be an object")
    return result


def _verification(path: Path, topology: Topology) -> Verification:
    """A verification in which every layer is one of this network."""
    try:
        verification = _read(path, Verification.load)
    except ValueError as error:
        raise ValueError(f"{error}. Run `bayesbits verify {path.parent}` again, or remove the file") from error
    unknown = sorted({kernel.layer for kernel in verification.kernels} - {layer.name for layer in topology.layers})
    if unknown:
        raise ValueError(
            f"{path} is about another network: it has a layer {unknown[0]!r}. Run `bayesbits verify` again, or remove "
            "the file"
        )
    return verification


def read_training_curves(path: Path, epochs: Mapping[str, int]) -> tuple[Stage, ...]:
    """Read metrics.jsonl; `epochs` has the names of the stages in order and their numbers of epochs.

    A finished stage ends with a line about its last step, so steps can be converted to epochs. Stages without lines
    are left out.
    """
    lines = _training_lines(path)
    stages = []
    for name, number in epochs.items():
        own = [line for line in lines if line["phase"] == name]
        if own and number:
            scale = number / max(line["step"] for line in own)
            points = [
                Point(line["step"] * scale, line.get("task_loss"), line.get("expected_relative_bops")) for line in own
            ]
            stages.append(Stage(name, number, _averaged(points)))
    return tuple(stages)


def _training_lines(path: Path) -> list[dict[str, Any]]:
    lines = []
    for number, text in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not text.endswith(b"\n"):  # the last line was not written to its end
            break
        try:
            line = json.loads(text)
            if line["event"] == "train":
                _check_line(line)
                lines.append(line)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged in line {number}: {type(error).__name__}: {error}") from error
    return lines


def _check_line(line: Mapping[str, Any]) -> None:
    if not isinstance(line["phase"], str) or not isinstance(line["step"], int) or line["step"] < 1:
        raise ValueError("it has no phase and step")
    for key in ("task_loss", "expected_relative_bops"):
        if not isinstance(line.get(key), int | float | None):
            raise ValueError(f"{key} is {line[key]!r}")


def _averaged(points: Sequence[Point]) -> tuple[Point, ...]:
    """At most `_MOST_POINTS` points: of neighbors, the mean loss and the last cost."""
    size = ceil(len(points) / _MOST_POINTS)
    if size <= 1:
        return tuple(points)
    averaged = []
    for first in range(0, len(points), size):
        neighbors = points[first : first + size]
        losses = [point.task_loss for point in neighbors if point.task_loss is not None]
        mean = sum(losses) / len(losses) if losses else None
        averaged.append(Point(neighbors[-1].epoch, mean, neighbors[-1].relative_bops))
    return tuple(averaged)
