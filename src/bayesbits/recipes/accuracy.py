"""A network tested on data: how often a classifier is right, or any other metrics."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.recipes.metrics import Metric, class_metrics, count_examples
from bayesbits.utils.batches import call_model, to_device
from bayesbits.utils.modes import modes_restored


def accuracy(model: nn.Module, batches: Iterable[Any]) -> float:
    """The examples whose largest logit is that of their label, in percent; in evaluation mode."""
    return measure(model, batches, class_metrics()[:1])[0]["accuracy"]


def measure(model: nn.Module, batches: Iterable[Any], metrics: Sequence[Metric]) -> tuple[dict[str, float], int]:
    """Every metric by its key, over all batches of (inputs, targets) in evaluation mode, and how many examples."""
    device = next(model.parameters()).device
    totals: list[Tensor] = []
    number = 0
    with modes_restored(model), torch.no_grad(), whole_float32():
        model.eval()
        for batch in batches:
            output, targets = output_and_targets(model, batch, device)
            for metric in metrics:
                problem = metric.problem(output, targets)
                if problem is not None:
                    raise ValueError(f"the metric {metric.name} cannot be computed: {problem}")
            added = [metric.gather(output, targets) for metric in metrics]
            totals = [total + new for total, new in zip(totals, added, strict=True)] if totals else added
            number += count_examples(output, targets)
    if number == 0:
        raise ValueError("there is nothing to test on: the loader gave no batches")
    return {metric.key: metric.value(total) for metric, total in zip(metrics, totals, strict=True)}, number


def output_and_targets(model: nn.Module, batch: Any, device: torch.device) -> tuple[Any, Any]:
    """What a network gives for a batch, and what it is asked for."""
    check_pair(batch)
    inputs, targets = to_device(batch, device)
    return call_model(model, inputs), targets


def check_pair(batch: Any) -> None:
    """Raise unless a batch has inputs and labels."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise ValueError(
            f"a batch to test on is a {type(batch).__name__} and no pair (inputs, labels): a test needs labels. "
            "Without any, call bayesbits.posttrain with an `evaluate` of your own, or with none"
        )


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
