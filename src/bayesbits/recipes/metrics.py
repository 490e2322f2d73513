"""How good a network is: metrics with a name, a unit and a direction, over all batches of a data set.

A metric is a sum over the batches and a number that is read from the sum, so that it does not depend on how examples
are batched: the mean IoU of a data set is no mean over batches. `problem` says why outputs and targets do not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesbits.recipes.recipe import IGNORED
from bayesbits.utils.torch_private import tree_leaves

Problem = Callable[[Any, Any], str | None]


@dataclass(frozen=True)
class Metric:
    """One number about a network on data."""

    name: str
    """What people call it, such as "mean IoU"."""
    higher_is_better: bool
    unit: str
    """"%", or nothing."""
    gather: Callable[[Any, Any], Tensor]
    """What one batch adds, from the network's output and the targets."""
    value: Callable[[Tensor], float]
    """The metric, from the sum of these."""
    problem: Problem
    """Why it is not for such an output and such targets; None where it is."""

    @property
    def key(self) -> str:
        """What recipes and files call it, such as "mean_iou"."""
        return self.name.lower().replace(" ", "_")

    def score(self, value: float) -> float:
        """The value so that higher is better, and from such a score the value."""
        return value if self.higher_is_better else -value

    def text(self, value: float) -> str:
        """A value with its unit."""
        return text_of(value, self.unit)


@dataclass(frozen=True)
class Score:
    """What a metric came to on the test set."""

    name: str
    """The metric's."""
    value: float
    """Of the final network."""
    float_value: float | None
    """Of the float network that was started from; None where there was none."""
    unit: str
    higher_is_better: bool

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
        """In words."""
        return "higher is better" if self.higher_is_better else "lower is better"

    @property
    def change(self) -> str | None:
        """From the float network to the final one, in words."""
        return None if self.float_value is None else change_of(self.float_value, self.value, self)


def text_of(value: float, unit: str) -> str:
    """A value as people read it."""
    return f"{value:.2f}%" if unit == "%" else f"{value:.4g}{unit}"


def change_of(before: float, after: float, metric: Metric | Score) -> str:
    """How much a value has changed, and whether that is better."""
    difference = after - before
    points = metric.unit == "%"
    amount = f"{difference:+.2f} points" if points else f"{difference:+.3g}{metric.unit}"
    if (round(difference, 2) if points else difference) == 0:
        return amount
    return f"{amount}, {'better' if (difference > 0) == metric.higher_is_better else 'worse'}"


def described(value: Any) -> str:
    """An output or a target in words: type and shape."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return f"a {type(value).__name__}"


def count_examples(output: Any, targets: Any) -> int:
    """How many examples a batch has: the length of the first tensor in its targets, or else in the output."""
    for leaf in tree_leaves((targets, output)):
        if isinstance(leaf, Tensor) and leaf.dim():
            return len(leaf)
    raise ValueError("neither the targets nor the network's output hold a tensor with one entry for each example")


def class_metrics(ignored: int = IGNORED) -> tuple[Metric, Metric, Metric]:
    """Accuracy, and of networks with a class at every place mean IoU and pixel accuracy; in percent."""

    def right(output: Tensor, targets: Tensor) -> Tensor:
        counted = targets != ignored
        return torch.stack([((output.argmax(1) == targets) & counted).sum(), counted.sum()])

    def part(total: Tensor) -> float:
        return 100 * int(total[0]) / int(total[1]) if total[1] else 0.0

    def confusion(output: Tensor, targets: Tensor) -> Tensor:
        classes, counted = output.shape[1], targets != ignored
        pairs = targets[counted].long() * classes + output.argmax(1)[counted]
        return torch.bincount(pairs, minlength=classes**2).reshape(classes, classes)

    def mean_iou(total: Tensor) -> float:
        both, union = total.diagonal().double(), (total.sum(0) + total.sum(1) - total.diagonal()).double()
        occurs = union > 0  # a class that is nowhere, neither asked for nor given, has no IoU
        return 100 * float((both[occurs] / union[occurs]).mean()) if bool(occurs.any()) else 0.0

    def no_logits(output: Any, targets: Any) -> str | None:
        return class_problem(output, targets, 0, ignored)

    def no_maps(output: Any, targets: Any) -> str | None:
        return class_problem(output, targets, 1, ignored)

    return (
        Metric("accuracy", True, "%", right, part, no_logits),
        Metric("mean IoU", True, "%", confusion, mean_iou, no_maps),
        Metric("pixel accuracy", True, "%", right, part, no_maps),
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
    """Why these are no logits [examples, classes, places...] and class numbers [examples, places...]."""
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
            f"the network tells {output.shape[1]} classes apart, and the targets go from {int(counted.min())} to "
            f"{int(counted.max())}; what is to be left out is task.ignore_index, now {ignored}"
        )
    return None


def number_problem(output: Any, targets: Any) -> str | None:
    """Why these are no two float tensors of one shape."""
    for what, value in (("the network gives", output), ("the targets are", targets)):
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return f"it is for float numbers, and {what} {described(value)}"
    if output.shape != targets.shape:  # broadcasting would compare every output with every target
        return f"the network gives {list(output.shape)}, and the targets are {list(targets.shape)}: they have one shape"
    return None


def _wide(value: Tensor) -> Tensor:
    return value.detach().cpu().double()


def _columns(value: Tensor) -> Tensor:
    """Examples by outputs; where examples are not vectors, all numbers count alike."""
    return _wide(value) if value.dim() == 2 else _wide(value).reshape(-1, 1)
