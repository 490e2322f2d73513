"""Tasks: a loss to train with and metrics to evaluate with, by name or as functions of the user's.

    classification    logits [examples, classes]             cross_entropy    accuracy
    segmentation      logits [examples, classes, places...]  cross_entropy    mean_iou, pixel_accuracy
    regression        float numbers                          mse              mse, mae, r2

Another loss is mae. A name with a colon, package.module:function, is a function of the user's that is called with the
network's output and the targets: a loss returns a scalar tensor, a metric the mean over the examples of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesbits.recipes.factories import find_function
from bayesbits.recipes.metrics import (
    Metric,
    Problem,
    Score,
    class_metrics,
    class_problem,
    described,
    examples_in,
    number_metrics,
    number_problem,
)
from bayesbits.recipes.recipe import CLASSIFICATION, IGNORED, REGRESSION, SEGMENTATION, TaskConfig


@dataclass(frozen=True)
class Loss:
    """The function that training minimizes."""

    name: str
    """Its name in recipes."""
    function: Callable[[Any, Any], Tensor]
    """The loss, from the network's output and the targets."""
    problem: Problem
    """Why output and targets do not fit the loss; None where they fit."""


@dataclass(frozen=True)
class LearningTask:
    """The loss and the metrics of a recipe."""

    name: str
    """The name of the task, such as "classification"."""
    loss: Loss
    """The loss to train with."""
    metrics: tuple[Metric, ...]
    """The metrics to evaluate with; tables and fronts show the first one."""

    @property
    def metric(self) -> Metric:
        """The metric that tables and fronts show."""
        return self.metrics[0]

    def scores(self, values: Mapping[str, float], float_values: Mapping[str, float] | None) -> tuple[Score, ...]:
        """The values of the final network and of the float network, which are given by the metrics' keys."""
        return tuple(
            Score(
                one.name, values[one.key], None if float_values is None else float_values[one.key], one.unit,
                one.higher_is_better,
            )
            for one in self.metrics
        )  # fmt: skip

    def check(self, output: Any, targets: Any, where: str, *, loss: bool) -> None:
        """Raise, naming the problem, unless the metrics, and with `loss` the loss, can be computed from a batch."""
        parts: list[Loss | Metric] = [*([self.loss] if loss else []), *self.metrics]
        for part in parts:
            name = f"the {'loss' if isinstance(part, Loss) else 'metric'} {part.name}"
            problem = part.problem(output, targets)
            if problem is None:
                problem = _computing_problem(part, output, targets)
            if problem is not None:
                raise ValueError(f"{name} cannot be computed on the {where}: {problem}. {_HOW_TO_CHOOSE}")


_HOW_TO_CHOOSE = (
    "The table [task] of a recipe chooses loss and metric; on the command line: --task classification, segmentation or "
    "regression, --loss and --metric, each also package.module:function"
)


def learning_task(config: TaskConfig) -> LearningTask:
    """The loss and the metrics that a recipe's `[task]` names."""
    accuracy, mean_iou, pixel_accuracy = class_metrics(config.ignore_index)
    named = {
        CLASSIFICATION: (accuracy,),
        SEGMENTATION: (mean_iou, pixel_accuracy),
        REGRESSION: number_metrics(),
    }
    metrics = named[config.name]
    if config.metric is not None and ":" in config.metric:
        metrics = (_users_metric(config.metric, config.higher_is_better),)
    elif config.metric is not None:
        group = next(group for group in named.values() if config.metric in [one.key for one in group])
        metrics = tuple(sorted(group, key=lambda one: one.key != config.metric))  # the chosen one first
    return LearningTask(config.name, _loss(config.loss_name, config.ignore_index), metrics)


def _loss(name: str, ignored: int) -> Loss:
    def cross_entropy(output: Tensor, targets: Tensor) -> Tensor:
        if ignored == IGNORED:
            return F.cross_entropy(output, targets)
        return F.cross_entropy(output, targets, ignore_index=ignored)

    if ":" in name:
        return Loss(name, find_function(name, "loss"), _no_problem)
    if name == "cross_entropy":
        return Loss(name, cross_entropy, lambda output, targets: _class_loss_problem(output, targets, ignored))
    return Loss(name, {"mse": F.mse_loss, "mae": F.l1_loss}[name], number_problem)


def _class_loss_problem(output: Any, targets: Any, ignored: int) -> str | None:
    places = isinstance(output, Tensor) and output.dim() > 2
    return class_problem(output, targets, int(places), ignored)


def _users_metric(name: str, higher_is_better: bool | None) -> Metric:
    function = find_function(name, "metric")
    if higher_is_better is None:
        raise ValueError(
            f"the metric {name} is your own: set task.higher_is_better to say whether higher is better (on the command "
            "line: --set task.higher_is_better=true, or false)"
        )

    def gather(output: Any, targets: Any) -> Tensor:
        value, examples = function(output, targets), examples_in(targets, output)
        return torch.tensor([float(value) * examples, examples], dtype=torch.float64)

    def mean(total: Tensor) -> float:
        return float(total[0] / total[1])

    return Metric(name.partition(":")[2], higher_is_better, "", gather, mean, _no_problem)


def _no_problem(_output: Any, _targets: Any) -> str | None:
    return None


def _computing_problem(part: Loss | Metric, output: Any, targets: Any) -> str | None:
    """Why a loss or metric cannot be computed from one batch, found by computing it; None where it can."""
    given = f"from {described(output)} and targets that are {described(targets)}"
    try:
        if isinstance(part, Metric):
            part.value(part.gather(output, targets))
            return None
        found = part.function(output, targets)
    except Exception as error:  # a function of the user's may raise anything
        return f"{given} it raised {type(error).__name__}: {error}"
    if not isinstance(found, Tensor) or found.dim() or not found.is_floating_point():
        return f"{given} it returned {described(found)}, where a scalar tensor is wanted"
    return None
