"""Before any training: do network, data, loss and metrics fit each other? One batch of each kind is tried."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from bayesbits.recipes.accuracy import check_pair, output_and_targets
from bayesbits.recipes.loaders import Loaders
from bayesbits.recipes.tasks import LearningTask
from bayesbits.training import randomness
from bayesbits.training.batches import Batches
from bayesbits.utils.modes import modes_restored

_FAILURES = (RuntimeError, LookupError, TypeError, ValueError, AttributeError)
"""What a network raises where its code does not fit what it is given."""


@contextmanager
def run_on(what: str, more: str = "") -> Iterator[None]:
    """In here a network is run on something: where that fails, a ValueError says so in the words of its own code."""
    try:
        yield
    except _FAILURES as error:
        words = next(iter(str(error).splitlines()), "")
        said = f"{type(error).__name__}: {words}" if isinstance(error, KeyError) or not words else words
        raise ValueError(f"the network cannot be run on {what}: {said}{more}") from error


def check_fits(task: LearningTask, model: nn.Module, loaders: Loaders, *, labeled: bool = True) -> None:
    """Raise, saying what does not fit, unless loss and metrics can be computed; nothing is left changed.

    The training batch is tried with the loss and the metrics, those of validation and test with the metrics alone. Not
    `labeled`: training batches have no targets, and are not tried.
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
        with modes_restored(model), torch.no_grad():
            model.eval()
            check_pair(batch)
            with run_on(f"the {where}"):
                output, targets = output_and_targets(model, batch, device)
            task.check(output, targets, where, loss=loss)
    finally:
        randomness.restore(before, device, generators)
