"""How often a classifier is right."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.training.batches import to_device
from bayesbits.training.engine import modes_restored
from bayesbits.training.step import call


def accuracy(model: nn.Module, batches: Iterable[Any]) -> float:
    """The examples whose largest logit is that of their label, in percent; in evaluation mode."""
    right, number = count_right(model, batches)
    return 100 * right / number


def count_right(model: nn.Module, batches: Iterable[Any]) -> tuple[int, int]:
    """How many examples' largest logit is that of their label, and how many there are."""
    device = next(model.parameters()).device
    right, number = torch.zeros((), dtype=torch.int64, device=device), 0
    with modes_restored(model), torch.no_grad(), whole_float32():
        model.eval()
        for batch in batches:
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                raise ValueError(
                    f"a batch to test on is a {type(batch).__name__} and no pair (inputs, labels): an accuracy needs "
                    "labels. Without any, call bayesbits.posttrain with an `evaluate` of your own, or with none"
                )
            inputs, labels = to_device(batch, device)
            logits = call(model, inputs)
            if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(labels):
                given = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
                raise ValueError(
                    f"the network gives {given} for {len(labels)} labels; recipes are for classifiers, with logits "
                    "[examples, classes]: for other tasks call bayesbits.search with your own loss"
                )
            right += (logits.argmax(1) == labels).sum()
            number += len(labels)
    if number == 0:
        raise ValueError("there is nothing to test on: the loader gave no batches")
    return int(right.item()), number


@contextmanager
def whole_float32() -> Iterator[None]:
    """In here a GPU computes with all of float32, as other devices do.

    By default torch lets it round what convolutions read to 10 bits. At few bits that is another network than the one
    that is deployed, and decides otherwise for one image in a hundred.
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
