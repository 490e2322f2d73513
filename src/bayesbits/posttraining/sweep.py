"""Post-training: a sweep over the weight mu of the penalty, with gates and ranges learned by gradient descent.

    loss(batch) + mu * penalty

The penalty is that of the spec, or what a budget limits (see `posttraining.sweep_penalty`). The weights increase, and
each point starts where the previous one ended. Adam normalizes gradients by their size, so that gates without influence
on the loss close at the same speed for every mu, and the others stop where the gradients of loss and penalty are equal.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.compression.budget import Budget, as_budget
from bayesbits.compression.compressor import Compressor, check_compressor, check_gated
from bayesbits.compression.smallest_plan import check_reachable
from bayesbits.posttraining.budget_points import BudgetPoints
from bayesbits.posttraining.config import LEARN, PosttrainConfig
from bayesbits.posttraining.examples import take_batches
from bayesbits.posttraining.front_points import read_point
from bayesbits.posttraining.losses import BatchLoss, LossFunction, batch_loss
from bayesbits.posttraining.penalty_weights import default_weights
from bayesbits.posttraining.quantizer_state import (
    Ranges,
    check_evaluation_mode,
    only_learning,
    quantizers_restored,
    quantizers_restored_on_failure,
    remember_sweep,
    reset_for_sweep,
)
from bayesbits.posttraining.sweep_penalty import sweep_penalty
from bayesbits.records.front import Front, Point
from bayesbits.utils.progress import progress_bar


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
    budget: Budget | str | None = None,
) -> Front:
    """Learn bit widths, and channels where the spec prunes, on a few hundred examples; no weight changes.

    It starts with all learning gates open, and with the ranges that `calibrate`, `restore` or a checkpoint gave: an
    earlier call has no influence, and the same call gives the same front again. Afterwards the compressor is where the
    last point ended, still learning. If a point fails or is interrupted, the compressor is as before that point.

    Args:
        compressor: The compressor that `attach` returned; its network is in evaluation mode.
        batches: The examples, on the device of the model. With `loss="labels"` a batch is a pair of inputs and labels,
            otherwise it is the inputs of the model. All batches are kept in memory.
        learn: "gates" or "gates+ranges".
        config: All settings; None: the defaults.
        loss_fn: With `loss="labels"`: `loss_fn(output, labels)` in the place of cross-entropy.
        evaluate: `evaluate(model)` scores the network with the decision of each point; higher is better.
        progress: Called with a line of text for each point.
        keep: Called with the front so far after each point.
        budget: The most that a plan may cost, such as "2% bops" or "500 kB": the gates of every point are projected
            onto it too, and the plan with the least loss on the examples is one more point, the last. Its ranges are
            those with the least loss: the point's own, or fitted to its widths and, with "gates+ranges", learned.
            Where it limits bytes or milliseconds, the penalty is the sum over the limits of expected cost / limit, in
            the place of `Spec.penalty`.

    Returns:
        A front with one point for each weight of the penalty, and with a budget one more, which is within it;
        `restore(compressor, point)` makes one of them final.

    Raises:
        BudgetError: The budget is below the smallest cost under the spec; nothing was learned.
        TypeError: The compressor or the batches are of another type.
        ValueError: An argument is wrong, the examples are too few or constant, the network is in training mode, or the
            loss became NaN.

    Example::

        >>> import torch, bayesbits as bb
        >>> compressor = bb.attach(torch.nn.Linear(4, 2).eval(), torch.zeros(1, 4), bb.Spec(bits=(4, 8)))
        >>> config = bb.PosttrainConfig(mus=(0.001, 0.1), steps=2, loss="output")
        >>> front = bb.posttrain(compressor, torch.randn(64, 4).split(32), config=config)
        >>> [point.mu for point in front.points]
        [0.001, 0.1]
    """
    check_compressor(compressor, "posttrain")
    check_gated(compressor, "posttrain", learns=True)
    config = PosttrainConfig() if config is None else config
    limit = as_budget(budget, "budget")
    if learn not in LEARN:
        raise ValueError(f"learn is {learn!r}; it is one of {', '.join(LEARN)}")
    if loss_fn is not None and config.loss != "labels":
        raise ValueError(f"loss_fn compares with labels, and PosttrainConfig.loss is {config.loss!r}; give one of them")
    check_evaluation_mode(compressor.model, compressor.attachment)
    if limit is not None:
        check_reachable(compressor.attachment, limit)
    inputs, labels = take_batches(batches, labeled=config.loss == "labels")
    if not compressor.attachment.calibrated:
        compressor.calibrate(inputs, config.calibration)
    loss = batch_loss(compressor, config.loss, inputs, labels, loss_fn)
    order = torch.Generator().manual_seed(config.seed)
    compressor.attachment.bank.counter.copy_(torch.tensor([config.seed, 0]))
    points: list[Point] = []
    within = None if limit is None else BudgetPoints(compressor, limit, loss, inputs)
    started: Ranges = {}
    penalty = sweep_penalty(compressor, limit)
    mus = config.mus if config.mus is not None else default_weights(compressor, penalty, loss, len(inputs))
    shown = progress is None and keep is None  # those who are told of each point show them in their own way
    for mu in mus:
        with (
            quantizers_restored_on_failure(compressor.attachment),
            progress_bar(f"post-training, mu {mu:g}", config.steps, shown=shown) as advance,
        ):
            started = started or reset_for_sweep(compressor.attachment)
            with only_learning(compressor, tuple(learn.split("+"))) as groups:
                batches_of_steps = batch_order(len(inputs), config.steps, order)
                _learn_point(groups, loss, penalty, mu, config, batches_of_steps, advance)
            score = None
            if evaluate is not None:
                with quantizers_restored(compressor.attachment):
                    compressor.fix()
                    score = float(evaluate(compressor.model))
            if within is not None:
                within.add(mu)
        remember_sweep(compressor.attachment, started)
        points.append(read_point(compressor, score=score, mu=mu))
        if progress is not None:
            scored = "" if score is None else f", score {score:.6g}"
            progress(f"mu {mu:g}: {points[-1].relative_bops:.4g}% of the bit operations{scored}")
        if keep is not None:
            keep(Front(tuple(points)))
    if within is not None:
        with progress_bar("post-training, ranges within the budget", config.steps, shown=shown) as advance:
            indices = batch_order(len(inputs), config.steps, order)
            ranges = partial(learn_ranges, compressor, loss, config, indices, advance)
            points.append(within.settle(ranges if "ranges" in learn else None, evaluate))
        if keep is not None:
            keep(Front(tuple(points)))
    return Front(tuple(points))


def _learn_point(
    groups: dict[str, list[nn.Parameter]],
    loss: BatchLoss,
    penalty: Callable[[], Tensor],
    mu: float,
    config: PosttrainConfig,
    order: list[int],
    advance: Callable[[], None],
) -> None:
    """Take a step of Adam for each batch in this order."""
    if "gates" not in groups:
        raise ValueError("no gate of this network learns: every width and channel is fixed by rules or by a plan")
    optimizer, schedule = _optimizer(groups, config, len(order))
    total = torch.zeros((), device=groups["gates"][0].device)
    for index in order:
        optimizer.zero_grad()
        value = loss(index) + mu * penalty()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        total += value.detach()
        advance()
    if not bool(torch.isfinite(total)):
        raise ValueError(
            f"the loss became NaN or infinite at mu = {mu:g}; gates and ranges are what they were before this point. "
            "Lower gate_lr and range_lr, or check that the loss itself is finite on every batch"
        )


def learn_ranges(
    compressor: Compressor, loss: BatchLoss, config: PosttrainConfig, order: list[int], advance: Callable[[], None]
) -> None:
    """The same for the ranges of a network with a final plan, without a penalty."""
    with only_learning(compressor, ("ranges",)) as groups:
        optimizer, schedule = _optimizer(groups, config, len(order))
        for index in order:
            optimizer.zero_grad()
            loss(index).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            advance()


def _optimizer(
    groups: dict[str, list[nn.Parameter]], config: PosttrainConfig, steps: int
) -> tuple[torch.optim.Adam, torch.optim.lr_scheduler.LambdaLR]:
    """Adam for these groups; learning rates fall to zero over the last third of the steps."""
    lrs = {"gates": config.gate_lr, "ranges": config.range_lr}
    optimizer = torch.optim.Adam([{"params": groups[name], "lr": lrs[name]} for name in groups])
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, 3 * (1 - step / steps)))


def batch_order(batches: int, steps: int, generator: torch.Generator) -> list[int]:
    """The indices of the batches for so many steps; every pass over the batches has a new order."""
    order: list[int] = []
    while len(order) < steps:
        order += torch.randperm(batches, generator=generator).tolist()
    return order[:steps]
