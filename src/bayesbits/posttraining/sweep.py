"""Post-training itself: gates, and perhaps ranges, by gradient descent; one point for each weight of the penalty.

    loss(batch) + mu * penalty

The weights of the penalty increase, and each point goes on from where the one before it ended. Adam divides a
gradient by its own size, so that gates whose loss is silent close at the same speed whatever mu is, and the
others stop where loss and price are equal.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from bayesbits.compression.compressor import Compressor, check_compressor
from bayesbits.posttraining.config import LEARN, MUS, PosttrainConfig
from bayesbits.posttraining.examples import take_batches
from bayesbits.posttraining.losses import BatchLoss, LossFunction, batch_loss
from bayesbits.posttraining.modes import check_evaluation, kept, learning, undone_on_failure
from bayesbits.posttraining.points import read_point
from bayesbits.posttraining.starting import Ranges, end_point, start_afresh
from bayesbits.records.front import Front, Point


def posttrain(
    compressor: Compressor,
    batches: Iterable[Any],
    learn: str = "gates",
    config: PosttrainConfig | None = None,
    *,
    loss_fn: LossFunction | None = None,
    evaluate: Callable[[nn.Module], float] | None = None,
    progress: Callable[[str], None] | None = None,
    keep: Callable[[Front], None] | None = None,
) -> Front:
    """Learn bit widths, and channels where the spec prunes, on a few hundred examples; no weight changes.

    `learn` is "gates" or "gates+ranges". With `loss="labels"` a batch is a pair of inputs and labels, and `loss_fn`
    may take the place of cross-entropy; otherwise a batch is what the model is called with. All batches are kept, and
    lie on the model's device. `evaluate` scores the network as each point decides it, the higher the better.
    `progress` is called with a line for each point, `keep` with the front so far.

    It starts with all gates that learn open and with the ranges that `calibrate`, `restore` or a checkpoint gave,
    whatever another call has done to both: the same call gives the same front again.

    Returns a point for each weight of the penalty; `restore(compressor, point)` makes any of them final. The compressor
    is left where the last point ended, still learning; where a point fails or is interrupted, it is as before it.
    """
    check_compressor(compressor, "posttrain")
    config = PosttrainConfig() if config is None else config
    if learn not in LEARN:
        raise ValueError(f"learn is {learn!r}; it is one of {', '.join(LEARN)}")
    if loss_fn is not None and config.loss != "labels":
        raise ValueError(f"loss_fn compares with labels, and PosttrainConfig.loss is {config.loss!r}; give one of them")
    check_evaluation(compressor.model, compressor.attachment)
    inputs, labels = take_batches(batches, labeled=config.loss == "labels")
    if not compressor.attachment.calibrated:
        compressor.calibrate(inputs, config.calibration)
    loss = batch_loss(compressor, config.loss, inputs, labels, loss_fn)
    order = torch.Generator().manual_seed(config.seed)
    compressor.attachment.bank.counter.copy_(torch.tensor([config.seed, 0]))
    points: list[Point] = []
    started: Ranges = {}
    for mu in config.mus or MUS[compressor.spec.gates]:
        with undone_on_failure(compressor.attachment):
            started = started or start_afresh(compressor.attachment)
            with learning(compressor, tuple(learn.split("+"))) as groups:
                _learn_point(compressor, groups, loss, mu, config, _order(len(inputs), config.steps, order))
            score = None
            if evaluate is not None:
                with kept(compressor.attachment):
                    compressor.fix()
                    score = float(evaluate(compressor.model))
        end_point(compressor.attachment, started)
        points.append(read_point(compressor, score=score, mu=mu))
        if progress is not None:
            scored = "" if score is None else f", score {score:.6g}"
            progress(f"mu {mu:g}: {points[-1].relative_bops:.4g}% of the bit operations{scored}")
        if keep is not None:
            keep(Front(tuple(points)))
    return Front(tuple(points))


def _learn_point(
    compressor: Compressor,
    groups: dict[str, list[nn.Parameter]],
    loss: BatchLoss,
    mu: float,
    config: PosttrainConfig,
    order: list[int],
) -> None:
    """Go over the batches in this order, a step of Adam for each; the rates fall to zero over the last third."""
    if "gates" not in groups:
        raise ValueError("no gate of this network learns: every width and channel is fixed, by rules or by a plan")
    rates = {"gates": config.gate_lr, "ranges": config.range_lr}
    optimizer = torch.optim.Adam([{"params": groups[name], "lr": rates[name]} for name in groups])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, 3 * (1 - step / len(order))))
    total = torch.zeros((), device=groups["gates"][0].device)
    for index in order:
        optimizer.zero_grad()
        value = loss(index) + mu * compressor.penalty()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        total += value.detach()
    if not bool(torch.isfinite(total)):
        raise ValueError(
            f"the loss became NaN or infinite at mu = {mu:g}; gates and ranges are what they were before this point. "
            "Lower gate_lr and range_lr, or see whether the loss itself is finite on every batch"
        )


def _order(batches: int, steps: int, generator: torch.Generator) -> list[int]:
    """The numbers of the batches for so many steps: all of them in a new order, again and again."""
    order: list[int] = []
    while len(order) < steps:
        order += torch.randperm(batches, generator=generator).tolist()
    return order[:steps]
