"""Reads `metrics.jsonl`: losses, evaluations, costs and gates over the epochs of all stages of a run.

Lines know their step. A finished stage ends with a line about its last step, so that steps can be converted to epochs;
for a stage that still runs the number of steps in an epoch is estimated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, isfinite
from pathlib import Path
from typing import Any

_MOST_POINTS = 300  # of a curve; more cannot be distinguished
_EVENTS = ("train", "evaluate", "gates", "projection")


@dataclass(frozen=True)
class Point:
    """A point of the training curves."""

    epoch: float
    """The number of epochs of the stage that were finished."""
    values: Mapping[str, float]
    """What was written there, by name; numbers that are not finite are left out."""


@dataclass(frozen=True)
class GatePoint:
    """What the gates had decided at one time."""

    epoch: float
    bits: Mapping[str, int]
    """The width of every tensor that learns, by name."""
    probabilities: Mapping[str, Mapping[str, float]]
    """P(z > 0) by tensor, and by the width of the gate."""
    kept: Mapping[str, int]
    """The number of channels that a layer keeps; a layer that is not named keeps all."""


@dataclass(frozen=True)
class Stage:
    """The curves of one stage: float training, search or fine-tuning."""

    name: str
    """Such as "search"."""
    epochs: float
    """Its number of epochs; those that are done where it still runs and the number is not known."""
    points: tuple[Point, ...]
    """Losses and costs, in the order of training; of a long stage the means of neighbors."""
    evaluations: tuple[Point, ...] = ()
    """Metrics on the validation data."""
    gates: tuple[GatePoint, ...] = ()
    """What the gates had decided."""


@dataclass(frozen=True)
class Curves:
    """The curves of all stages that have begun."""

    stages: tuple[Stage, ...] = ()
    """In the order in which they run."""
    executions: Mapping[str, str] = field(default_factory=dict)
    """How each stage was executed at its end, in words."""

    def names(self) -> list[str]:
        """All names of values, in the order in which they first appear."""
        points = [point for stage in self.stages for point in (*stage.points, *stage.evaluations)]
        return list(dict.fromkeys(name for point in points for name in point.values))


def read_curves(path: Path, epochs: Mapping[str, int], finished: bool) -> Curves:
    """Read a file of metrics; `epochs` has the stages in order and their numbers of epochs, 0 where not known."""
    lines = _lines(path)
    names = list(dict.fromkeys([*epochs, *(line["phase"] for line in lines)]))
    stages = []
    for position, name in enumerate(names):
        own = [line for line in lines if line["phase"] == name]
        if not own:
            continue
        later = any(line["phase"] in names[position + 1 :] for line in lines)
        stages.append(_stage(name, own, epochs.get(name, 0), finished or later))
    return Curves(tuple(stages))


def _stage(name: str, lines: Sequence[Mapping[str, Any]], epochs: int, finished: bool) -> Stage:
    last = max(line["step"] for line in lines)
    steps = last / epochs if finished and epochs else max(line["step"] / (line.get("epoch", 0) + 1) for line in lines)
    kinds: dict[str, list[Mapping[str, Any]]] = {event: [] for event in _EVENTS}
    for line in lines:
        kinds[line["event"]].append(line)
    points = [Point(line["step"] / steps, _numbers(line)) for line in kinds["train"]]
    gates = [
        GatePoint(
            line["step"] / steps,
            dict(line["bits"]),
            {tensor: dict(values) for tensor, values in line["probabilities"].items()},
            dict(line.get("kept", {})),
        )
        for line in kinds["gates"]
    ]
    counted = [Point(line["step"] / steps, {"relative_bops": line["relative_bops"]}) for line in kinds["gates"]]
    evaluations = [Point(line["step"] / steps, _numbers(line)) for line in kinds["evaluate"]]
    return Stage(
        name, max(float(epochs), last / steps), (*averaged(points), *counted), tuple(evaluations), tuple(gates)
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    lines = []
    for number, text in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not text.endswith(b"\n"):  # the last line was not written to its end
            break
        try:
            line = json.loads(text)
            if line["event"] in _EVENTS:
                _check(line)
                lines.append(line)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged in line {number}: {type(error).__name__}: {error}") from error
    return lines


def _check(line: Mapping[str, Any]) -> None:
    if not isinstance(line["phase"], str):
        raise ValueError(f"its phase is {line['phase']!r}")
    for key, value, least in (("step", line["step"], 1), ("epoch", line.get("epoch", 0), 0)):
        if not isinstance(value, int) or value < least:
            raise ValueError(f"its {key} is {value!r}")
    for key in ("task_loss", "expected_relative_bops"):
        if not isinstance(line.get(key), int | float | None):
            raise ValueError(f"{key} is {line[key]!r}")
    if line["event"] == "gates":
        if not isinstance(line["relative_bops"], int | float):
            raise ValueError(f"relative_bops is {line['relative_bops']!r}")
        for values in line["probabilities"].values():
            if not all(isinstance(one, int | float) for one in values.values()):
                raise ValueError(f"probabilities are {values!r}")
        if not all(isinstance(one, int) for one in (*line["bits"].values(), *line.get("kept", {}).values())):
            raise ValueError("bits and kept channels are whole numbers")


def _numbers(line: Mapping[str, Any]) -> dict[str, float]:
    skipped = ("phase", "event", "epoch", "step", "seconds")
    return {
        name: float(value)
        for name, value in line.items()
        if name not in skipped and isinstance(value, int | float) and isfinite(value)
    }


def averaged(points: Sequence[Point]) -> tuple[Point, ...]:
    """At most `_MOST_POINTS` points: of neighbors, the mean of losses and the last of everything else."""
    size = ceil(len(points) / _MOST_POINTS)
    if size <= 1:
        return tuple(points)
    found = []
    for first in range(0, len(points), size):
        neighbors = points[first : first + size]
        values = {name: value for point in neighbors for name, value in point.values.items()}
        for name in ("loss", "task_loss", "penalty"):
            losses = [point.values[name] for point in neighbors if name in point.values]
            if losses:
                values[name] = sum(losses) / len(losses)
        found.append(Point(neighbors[-1].epoch, values))
    return tuple(found)
