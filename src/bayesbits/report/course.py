"""The course of a training: what `metrics.jsonl` says about loss and cost over the epochs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

_MOST_POINTS = 300


@dataclass(frozen=True)
class Point:
    """One moment of a stage."""

    epoch: float
    """How many epochs of the stage were done."""
    task_loss: float | None
    """The mean loss of the task since the point before; None where it was not finite."""
    relative_bops: float | None
    """The expected relative bit operations, in percent; None where the stage learns no bits."""


@dataclass(frozen=True)
class Stage:
    """Float training, the search, or fine-tuning."""

    name: str
    """Such as "search"."""
    epochs: int
    """How many it has."""
    points: tuple[Point, ...]
    """In the order of time."""


def read_course(path: Path, epochs: Mapping[str, int]) -> tuple[Stage, ...]:
    """The stages in the order of `epochs`, which has the number of epochs of each; those without lines are left out.

    A finished stage ends with a line about its last step; from there, steps are counted back into epochs.
    """
    lines = _training_lines(path)
    found = []
    for name, number in epochs.items():
        own = [line for line in lines if line["phase"] == name]
        if own and number:
            scale = number / max(line["step"] for line in own)
            points = [
                Point(line["step"] * scale, line.get("task_loss"), line.get("expected_relative_bops")) for line in own
            ]
            found.append(Stage(name, number, _thinned(points)))
    return tuple(found)


def _training_lines(path: Path) -> list[dict[str, Any]]:
    lines = []
    for number, text in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not text.endswith(b"\n"):  # cut off in the middle
            break
        try:
            line = json.loads(text)
            if line["event"] == "train":
                _check(line)
                lines.append(line)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged in line {number}: {type(error).__name__}: {error}") from error
    return lines


def _check(line: Mapping[str, Any]) -> None:
    if not isinstance(line["phase"], str) or not isinstance(line["step"], int) or line["step"] < 1:
        raise ValueError("it has no phase and step")
    for key in ("task_loss", "expected_relative_bops"):
        if not isinstance(line.get(key), int | float | None):
            raise ValueError(f"{key} is {line[key]!r}")


def _thinned(points: Sequence[Point]) -> tuple[Point, ...]:
    """At most so many points as can be told apart: losses are averaged, costs are the latest."""
    together = ceil(len(points) / _MOST_POINTS)
    if together <= 1:
        return tuple(points)
    thinned = []
    for first in range(0, len(points), together):
        run = points[first : first + together]
        losses = [point.task_loss for point in run if point.task_loss is not None]
        mean = sum(losses) / len(losses) if losses else None
        thinned.append(Point(run[-1].epoch, mean, run[-1].relative_bops))
    return tuple(thinned)
