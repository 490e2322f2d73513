"""The solver's plan within a budget, which `bayesbits posttrain --budget` reports beside the learned one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from bayesbits.baselines import solve
from bayesbits.cli.console import print_status
from bayesbits.compression.budget import Budget
from bayesbits.compression.compressor import Compressor
from bayesbits.posttraining import PosttrainConfig, restore
from bayesbits.posttraining.losses import LossFunction, batch_loss
from bayesbits.posttraining.quantizer_state import quantizers_restored
from bayesbits.records.front import Point
from bayesbits.utils.optional_packages import require_packages

LEARNED, SOLVER = "learned", "solver"


def check_solver(planner: str) -> bool:
    """Whether the solver is to run. Where it is asked for and scipy is missing, an ImportError; else a note."""
    if planner == LEARNED:
        return False
    try:
        require_packages("the solver", "scipy")
    except ImportError as error:
        if planner == SOLVER:
            raise
        print_status(f"{error}; only the learned plan is shown")
        return False
    return True


def solver_point(
    compressor: Compressor,
    batches: list[Any],
    config: PosttrainConfig,
    loss_fn: LossFunction | None,
    budget: Budget,
    evaluate: Callable[[], float],
) -> Point:
    """The solver's plan for the loss of post-training, with its score on the test set; the network is left as it was.

    For the loss of all layers, whose second derivative is not known, it is the squared error of the output.
    """
    loss = "mse" if config.loss == "layers" else config.loss
    point = solve(
        compressor, batches, budget, "measured" if callable(loss) else "gradient",
        loss=loss, loss_fn=loss_fn if loss == "labels" else None, progress=print_status,
    )  # fmt: skip
    with quantizers_restored(compressor.attachment):
        restore(compressor, point)
        return replace(point, score=evaluate())


def best_planner(
    compressor: Compressor,
    batches: list[Any],
    config: PosttrainConfig,
    loss_fn: LossFunction | None,
    points: dict[str, Point],
) -> str:
    """The planner whose point has the least loss on the examples, of which a note is printed."""
    if len(points) == 1:
        return next(iter(points))
    labeled = config.loss == "labels"
    inputs = [batch[0] for batch in batches] if labeled else batches
    labels = [batch[1] for batch in batches] if labeled else []
    loss = batch_loss(compressor, config.loss, inputs, labels, loss_fn if labeled else None)
    losses = {}
    with quantizers_restored(compressor.attachment), torch.no_grad():
        for name, point in points.items():
            restore(compressor, point)
            losses[name] = sum(float(loss(index)) for index in range(len(inputs))) / len(inputs)
    print_status("loss on the examples: " + ", ".join(f"{name} {value:.4g}" for name, value in losses.items()))
    return min(losses, key=losses.__getitem__)
