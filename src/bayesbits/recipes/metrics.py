"""Metrics of a network on a data set: accuracy, mean IoU, mean errors; each with a name, a unit and a direction.

A metric adds up sums over the batches and computes its value from them at the end, so that it does not depend on how
examples are batched: the mean IoU of a data set is not the mean over batches. `problem` says why outputs and targets do
not fit a metric.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesbits.recipes.recipe import IGNORED
from bayesbits.utils.batches import batched_tensors

Problem = Callable[[Any, Any], str | None]


@dataclass(frozen=True)
class Metric:
    """How a number that describes a network on a data set is computed."""

    name: str
    """The name for people, such as "mean IoU"."""
    higher_is_better: bool
    """Whether a higher value is better."""
    unit: str
    """"%", or empty."""
    gather: Callable[[Any, Any], Tensor]
    """The sums of one batch, from the network's output and the targets."""
    value: Callable[[Tensor], float]
    """The value, from the sums of all batches."""
    problem: Problem
    """Why output and targets do not fit the metric; None where they fit."""
    by_class: Callable[[Tensor], tuple[float | None, ...]] | None = None
    """The value on the examples of each class, from the sums of all batches; None for a class without examples."""

    @property
    def key(self) -> str:
        """The name in recipes and files, such as "mean_iou"."""
        return self.name.lower().replace(" ", "_")

    def score(self, value: float) -> float:
        """The value with the sign that makes higher better; applied to such a score, the value again."""
        return value if self.higher_is_better else -value

    def text(self, value: float) -> str:
        """A value with its unit."""
        return text_of(value, self.unit)


@dataclass(frozen=True)
class Score:
    """The value of a metric on the test set."""

    name: str
    """The name of the metric."""
    value: float
    """The value of the final network."""
    float_value: float | None
    """The value of the float network that the search started from; None where there was none."""
    unit: str
    """"%", or empty."""
    higher_is_better: bool
    """Whether a higher value is better."""

    @property
    def text(self) -> str:
        """The final network's value with its unit."""
        return text_of(self.value, self.unit)

    @property
    def float_text(self) -> str | None:
        """The float network's value with its unit."""
        return None if self.float_value is None else text_of(self.float_value, self.unit)

    @property
    def direction(self) -> str:
        """Which values are better, in words."""
        return "higher is better" if self.higher_is_better else "lower is better"

    @property
    def change(self) -> str | None:
        """The difference between the final and the float network, in words."""
        return None if self.float_value is None else change_of(self.float_value, self.value, self)


def text_of(value: float, unit: str) -> str:
    """A value with its unit, rounded for people."""
    return f"{value:.2f}%" if unit == "%" else f"{value:.4g}{unit}"


def change_of(before: float, after: float, metric: Metric | Score) -> str:
    """The difference between two values in words, and whether it is an improvement."""
    difference = after - before
    points = metric.unit == "%"
    amount = f"{difference:+.2f} points" if points else f"{difference:+.3g}{metric.unit}"
    if (round(difference, 2) if points else difference) == 0:
        return amount
    return f"{amount}, {'better' if (difference > 0) == metric.higher_is_better else 'worse'}"


def described(value: Any) -> str:
    """The type and shape of an output or a target in words."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return f"a {type(value).__name__}"


def examples_in(targets: Any, output: Any) -> int:
    """How many examples a batch has: the length of the first tensor in its targets, or else in the output."""
    tensors = batched_tensors((targets, output))
    if not tensors:
        raise ValueError("neither the targets nor the network's output hold a tensor with one entry for each example")
    return len(tensors[0])


def class_metrics(ignored: int = IGNORED) -> tuple[Metric, Metric, Metric]:
    """Accuracy, and for a class at every pixel mean IoU and pixel accuracy; all in percent.

    Targets that equal `ignored` are left out.
    """

    def right(output: Tensor, targets: Tensor) -> Tensor:
        classes, counted = output.shape[1], targets != ignored
        labels, found = targets[counted].long(), (output.argmax(1) == targets)[counted]
        return torch.stack(
            [torch.bincount(labels[found], minlength=classes), torch.bincount(labels, minlength=classes)]
        )

    def part(total: Tensor) -> float:
        found, examples = total.sum(1).tolist()
        return 100 * found / examples if examples else 0.0

    def parts(total: Tensor) -> tuple[float | None, ...]:
        return tuple(100 * found / examples if examples else None for found, examples in total.T.tolist())

    def confusion(output: Tensor, targets: Tensor) -> Tensor:
        classes, counted = output.shape[1], targets != ignored
        pairs = targets[counted].long() * classes + output.argmax(1)[counted]
        return torch.bincount(pairs, minlength=classes**2).reshape(classes, classes)

    def mean_iou(total: Tensor) -> float:
        both, union = total.diagonal().double(), (total.sum(0) + total.sum(1) - total.diagonal()).double()
        occurs = union > 0  # a class that neither the targets nor the outputs contain has no IoU
        return 100 * float((both[occurs] / union[occurs]).mean()) if bool(occurs.any()) else 0.0

    def no_logits(output: Any, targets: Any) -> str | None:
        return class_problem(output, targets, 0, ignored)

    def no_maps(output: Any, targets: Any) -> str | None:
        return class_problem(output, targets, 1, ignored)

    return (
        Metric("accuracy", True, "%", right, part, no_logits, parts),
        Metric("mean IoU", True, "%", confusion, mean_iou, no_maps),
        Metric("pixel accuracy", True, "%", right, part, no_maps, parts),
    )


def number_metrics() -> tuple[Metric, Metric, Metric]:
    """Mean squared error, mean absolute error and coefficient of determination."""

    def squares(output: Tensor, targets: Tensor) -> Tensor:
        return torch.tensor(
            [float((_wide(output) - _wide(targets)).square().sum()), targets.numel()], dtype=torch.float64
        )

    def sizes(output: Tensor, targets: Tensor) -> Tensor:
        return torch.tensor([float((_wide(output) - _wide(targets)).abs().sum()), targets.numel()], dtype=torch.float64)

    def mean(total: Tensor) -> float:
        return float(total[0] / total[1])

    def moments(output: Tensor, targets: Tensor) -> Tensor:
        wanted, given = _columns(targets), _columns(output)
        count = torch.full_like(wanted[0], len(wanted))
        return torch.stack([count, wanted.sum(0), wanted.square().sum(0), (wanted - given).square().sum(0)])

    def r2(total: Tensor) -> float:
        count, first, second, rest = total
        spread = second - first.square() / count
        explained = torch.where(spread > 0, 1 - rest / spread, (rest == 0).double())
        return float(explained.mean())

    return (
        Metric("MSE", False, "", squares, mean, number_problem),
        Metric("MAE", False, "", sizes, mean, number_problem),
        Metric("R2", True, "", moments, r2, number_problem),
    )


def class_problem(output: Any, targets: Any, least_places: int, ignored: int = IGNORED) -> str | None:
    """Why these are no logits [examples, classes, places...] and class numbers [examples, places...]; None if they are.

    `least_places` is 0 for one class per example, and 1 for one class at every place, such as a pixel.
    """
    places = ", places..." if least_places else ""
    if not isinstance(output, Tensor) or not output.is_floating_point() or output.dim() < 2 + least_places:
        return f"it is for logits [examples, classes{places}], and the network gives {described(output)}"
    if not least_places and output.dim() != 2:
        return (
            f"it is for logits [examples, classes], and the network gives {described(output)}; for a class at every "
            "place of an image choose the task segmentation"
        )
    wanted = (output.shape[0], *output.shape[2:])
    if not isinstance(targets, Tensor) or targets.is_floating_point() or tuple(targets.shape) != wanted:
        numbers = isinstance(targets, Tensor) and targets.is_floating_point()
        hint = "; for numbers choose the task regression" if numbers else ""
        return (
            f"it is for class numbers {list(wanted)} beside the network's {list(output.shape)}, and the targets are "
            f"{described(targets)}{hint}"
        )
    counted = targets[targets != ignored]
    if counted.numel() and not 0 <= int(counted.min()) <= int(counted.max()) < output.shape[1]:
        return (
            f"the network has logits for {output.shape[1]} classes, and the targets go from {int(counted.min())} to "
            f"{int(counted.max())}; targets to leave out are marked by task.ignore_index, now {ignored}"
        )
    return None


def number_problem(output: Any, targets: Any) -> str | None:
    """Why these are no two float tensors of one shape; None if they are."""
    for what, value in (("the network gives", output), ("the targets are", targets)):
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return f"it is for float numbers, and {what} {described(value)}"
    if output.shape != targets.shape:  # broadcasting would compare every output with every target
        return f"the network gives {list(output.shape)}, and the targets are {list(targets.shape)}: the shapes differ"
    return None


def _wide(value: Tensor) -> Tensor:
    return value.detach().cpu().double()


def _columns(value: Tensor) -> Tensor:
    """[examples, outputs]; where examples are no vectors, every number is an example."""
    return _wide(value) if value.dim() == 2 else _wide(value).reshape(-1, 1)
