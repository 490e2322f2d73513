"""A network evaluated on data: metrics over a whole data set, and one batch as a check before training."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.recipes.data import Loaders
from bayesbits.recipes.metrics import Metric, class_metrics, examples_in
from bayesbits.recipes.tasks import LearningTask
from bayesbits.training import randomness
from bayesbits.training.batches import Batches
from bayesbits.utils.batches import call_model, to_device
from bayesbits.utils.modes import evaluation_mode

MOST_CLASSES = 1000
"""Accuracies of single classes are kept for as many classes."""
_FAILURES = (RuntimeError, LookupError, TypeError, ValueError, AttributeError)
"""The errors that a network raises where its inputs do not fit."""


def accuracy(model: nn.Module, batches: Iterable[Any]) -> float:
    """The percentage of examples whose largest logit is that of their label, in evaluation mode."""
    return measure(model, batches, class_metrics()[:1])[0]["accuracy"]


@dataclass(frozen=True)
class Measurement:
    """A network on a data set."""

    values: dict[str, float]
    """Every metric, by its key."""
    examples: int
    """The number of examples."""
    class_accuracies: tuple[float | None, ...] = ()
    """The accuracy on the examples of each class in percent, None for a class without examples; empty where no metric
    is an accuracy, or where there are too many classes to look at one by one."""


def measure(model: nn.Module, batches: Iterable[Any], metrics: Sequence[Metric]) -> tuple[dict[str, float], int]:
    """Every metric by its key over all batches of (inputs, targets) in evaluation mode, and the number of examples."""
    found = measure_by_class(model, batches, metrics)
    return found.values, found.examples


def measure_by_class(model: nn.Module, batches: Iterable[Any], metrics: Sequence[Metric]) -> Measurement:
    """The same with the accuracy of each class."""
    device = next(model.parameters()).device
    totals: list[Tensor] = []
    number = 0
    with evaluation_mode(model), torch.no_grad(), full_float32():
        for batch in batches:
            output, targets = _output_and_targets(model, batch, device)
            for metric in metrics:
                problem = metric.problem(output, targets)
                if problem is not None:
                    raise ValueError(f"the metric {metric.name} cannot be computed: {problem}")
            added = [metric.gather(output, targets) for metric in metrics]
            totals = [total + new for total, new in zip(totals, added, strict=True)] if totals else added
            number += examples_in(targets, output)
    if number == 0:
        raise ValueError("there is nothing to test on: the loader gave no batches")
    summed = list(zip(metrics, totals, strict=True))
    classes = next((metric.by_class(total) for metric, total in summed if metric.by_class is not None), ())
    return Measurement(
        {metric.key: metric.value(total) for metric, total in summed},
        number,
        classes if len(classes) <= MOST_CLASSES else (),
    )


def check_fits(task: LearningTask, model: nn.Module, loaders: Loaders, *, labeled: bool = True) -> None:
    """Raise, naming the problem, unless loss and metrics can be computed; network and random state stay unchanged.

    The first batch of training is tried with the loss and the metrics, those of validation and test with the metrics
    alone. With `labeled=False` training batches have no targets, and none is tried.
    """
    for where, loader, loss in (
        ("training data", loaders.train if labeled else None, True),
        ("validation data", loaders.validation, False),
        ("test data", loaders.test, False),
    ):
        if loader is not None:
            _try(task, model, loader, where, loss=loss)


def _try(task: LearningTask, model: nn.Module, loader: Iterable[Any], where: str, *, loss: bool) -> None:
    device = next(model.parameters()).device
    generators = Batches(loader, device).generators
    before = randomness.capture(device, generators)
    try:
        batch = next(iter(loader), None)
        if batch is None:
            raise ValueError(f"there is nothing in the {where}: the loader gave no batches")
        with evaluation_mode(model), torch.no_grad():
            _check_pair(batch)
            with explained(f"the {where}"):
                output, targets = _output_and_targets(model, batch, device)
            task.check(output, targets, where, loss=loss)
    finally:
        randomness.restore(before, device, generators)


@contextmanager
def explained(inputs: str, hint: str = "") -> Iterator[None]:
    """Errors of a network that runs inside the block become a ValueError that names its inputs and adds a hint."""
    try:
        yield
    except _FAILURES as error:
        words = next(iter(str(error).splitlines()), "")
        cause = f"{type(error).__name__}: {words}" if isinstance(error, KeyError) or not words else words
        raise ValueError(f"the network cannot be run on {inputs}: {cause}{hint}") from error


def _output_and_targets(model: nn.Module, batch: Any, device: torch.device) -> tuple[Any, Any]:
    _check_pair(batch)
    inputs, targets = to_device(batch, device)
    return call_model(model, inputs), targets


def _check_pair(batch: Any) -> None:
    """Raise unless a batch has inputs and labels."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise ValueError(
            f"a batch to test on is a {type(batch).__name__} and no pair (inputs, labels): a test needs labels. "
            "Without any, call bayesbits.posttrain with an `evaluate` of your own, or with none"
        )


@contextmanager
def full_float32() -> Iterator[None]:
    """Inside the block a GPU multiplies float32 numbers in full precision, as other devices do.

    By default torch lets convolutions round their inputs to 10 bits of mantissa (TF32). At low bit widths that is a
    different network from the deployed one: about one decision in a hundred changes.
    """
    cudnn: Any = torch.backends.cudnn
    settings = (cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul)
    before = [setting.fp32_precision for setting in settings]
    products = torch.get_float32_matmul_precision()
    try:
        allowed = cudnn.allow_tf32  # the older name: torch refuses to read it where it and the newer ones disagree
    except RuntimeError:
        allowed = None
    try:
        if allowed:
            cudnn.allow_tf32 = False
        torch.set_float32_matmul_precision("highest")
        for setting in settings:
            setting.fp32_precision = "ieee"
        yield
    finally:
        if allowed:
            cudnn.allow_tf32 = True
        torch.set_float32_matmul_precision(products)
        for setting, precision in zip(settings, before, strict=True):
            setting.fp32_precision = precision
