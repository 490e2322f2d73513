"""The solver: widths by an integer program over scores, without training, as HAWQ-V3 and its relatives choose them.

Every tensor and width has a score, by how much the loss is expected to grow (see `solver_scores`), and the scores are
taken to add up. The widths with the least sum within a budget are the solution of an integer program (see
`solver_program`). Nothing is learned: each tensor has the range that suits its width. No channel is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bayesbits.baselines.solver_program import WidthProgram
from bayesbits.baselines.solver_scores import DIRECTIONS, WidthScores, gradient_scores, measured_scores
from bayesbits.compression.budget import Budget, as_budget
from bayesbits.compression.compressor import Compressor, check_compressor, check_gated
from bayesbits.posttraining.examples import take_batches
from bayesbits.posttraining.front_points import put_range, read_point
from bayesbits.posttraining.losses import COMPARISONS, LossFunction
from bayesbits.posttraining.quantizer_state import check_evaluation_mode, quantizers_restored
from bayesbits.records.front import Point

SCORES = ("gradient", "measured")


def solve(
    compressor: Compressor,
    batches: Iterable[Any],
    budget: Budget | str,
    scores: str = "gradient",
    *,
    loss: str | LossFunction = "labels",
    loss_fn: LossFunction | None = None,
    progress: Callable[[str], None] | None = None,
) -> Point:
    """Choose the widths of all tensors within a budget, without training: the least expected loss, all channels stay.

    Tensors whose width a rule or a plan fixes keep it. Where ranges are not known, they are calibrated on the batches;
    otherwise the compressor is unchanged after the call. `restore(compressor, point)` makes the result final. It needs
    scipy: `pip install "bayesbits[solver]"`.

    Args:
        compressor: The compressor of a network in evaluation mode.
        batches: With `loss="labels"` pairs of inputs and labels, otherwise the inputs of the model.
        budget: The most that the plan may cost, such as "2% bops" or "500 kB".
        scores: How tensors and widths are scored. "gradient": by the squared errors of rounding, weighted by squared
            gradients, with one backward pass for each batch. "measured": by the loss with each tensor alone at each
            width, with a forward pass for each of them and each batch.
        loss: The loss whose growth is scored, as in `PosttrainConfig`: "labels", "output", "cosine" or "mse"; with
            measured scores also a function of your own, `loss(output, float_output)`.
        loss_fn: With `loss="labels"`: `loss_fn(output, labels)` in the place of cross-entropy.
        progress: A function that is called with a message after each batch of measured scores.

    Returns:
        A point with the plan, its cost, and ranges that suit its widths.

    Raises:
        BudgetError: No widths are within the budget with all channels; nothing was computed.
        ImportError: scipy is not installed.
        ValueError: An argument is not known, the examples are too few or constant, or the network is in training mode.

    Example::

        >>> import torch
        >>> import bayesbits as bb
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
        >>> x = torch.randn(64, 4)
        >>> compressor = bb.attach(model, x[:1])
        >>> point = bb.baselines.solve(compressor, x.split(32), "2% bops", loss="output")
        >>> point.relative_bops <= 2
        True
        >>> bb.restore(compressor, point)
    """
    check_compressor(compressor, "solve")
    check_gated(compressor, "solve")
    limit = as_budget(budget, "budget")
    if limit is None:
        raise ValueError('budget is None; the solver needs one, such as Budget(relative_bops=2) or "2% bops"')
    if scores not in SCORES:
        raise ValueError(f"scores is {scores!r}; it is one of {', '.join(SCORES)}")
    _check_loss(scores, loss, loss_fn)
    check_evaluation_mode(compressor.model, compressor.attachment)
    program = WidthProgram(compressor.attachment, limit)
    inputs, labels = take_batches(batches, labeled=loss == "labels")
    if not compressor.attachment.calibrated:
        compressor.calibrate(inputs, "mse")
    found = (
        gradient_scores(compressor, inputs, labels, str(loss), loss_fn)
        if scores == "gradient"
        else measured_scores(compressor, inputs, labels, loss, loss_fn, progress)
    )
    return point_of(compressor, program, found)


def point_of(compressor: Compressor, program: WidthProgram, found: WidthScores) -> Point:
    """The solution of the program for these scores, with their ranges; the compressor is left as it was."""
    plan = program.solve(found.scores)
    with quantizers_restored(compressor.attachment):
        for name, ranges in found.ranges.items():
            put_range(compressor.attachment.quantizers[name], ranges[plan.bits[name]])
        return read_point(compressor, plan)


def _check_loss(scores: str, loss: str | LossFunction, loss_fn: LossFunction | None) -> None:
    if loss_fn is not None and loss != "labels":
        raise ValueError(f"loss_fn compares with labels, and loss is {loss!r}; give one of them")
    known = ("labels", *(DIRECTIONS if scores == "gradient" else COMPARISONS))
    if callable(loss):
        if scores == "gradient":
            raise ValueError(
                "gradient scores need a loss whose second derivative is known: give one of "
                f"{', '.join(known)}, or scores='measured'"
            )
    elif loss not in known:
        raise ValueError(f"loss is {loss!r}; it is one of {', '.join(known)}")
