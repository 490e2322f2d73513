"""The two functions of training: `search` learns bits and channels, `finetune` trains further with both of them fixed.

Both take any loader of pairs (inputs, targets) and any loss `loss_fn(output, targets)`. A folder holds
`search.checkpoint`, `finetune.checkpoint`, `metrics.jsonl` and, after a search, `plan.json`.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from bayesbits.compression.compressor import Compressor
from bayesbits.records.plan import Plan
from bayesbits.training.config import FinetuneConfig, SearchConfig
from bayesbits.training.distributed import is_first
from bayesbits.training.engine import run
from bayesbits.training.errors import TrainingError
from bayesbits.training.phase import Evaluate, Phase
from bayesbits.training.step import LossFunction


def search(
    compressor: Compressor,
    loader: Iterable[Any],
    loss_fn: LossFunction,
    config: SearchConfig | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    evaluate: Evaluate | None = None,
    teacher: nn.Module | None = None,
    progress: bool = True,
) -> Plan:
    """Learn bits and channels together with the weights.

    Ranges that are not known are calibrated from the loader first. The network is trained in training mode; batch norm
    statistics are frozen for the last part of training. In the end every module is in the mode that it had before, and
    nothing is fixed yet: `compressor.fix(plan)` or `finetune` does that.

    With `config.budget` the weight of the penalty is controlled so that the cost arrives at the budget by about half of
    the search. Then the gates are projected onto it, and weights and ranges learn on with bits and channels that are
    final: the plan's counted cost is within the budget.

    Under torchrun every process calls this with its own part of the data; one process writes files. Resuming is exact
    for loaders that draw from the global random generators, from generators that a DataLoader or its samplers hold, or
    from `set_epoch`. For a loader without a length the schedules count the first epoch as 0 until it is over.

    Args:
        compressor: The compressor that `attach` returned.
        loader: Iterated once for every epoch; its batches are pairs (inputs, targets).
        loss_fn: `loss_fn(output, targets)` returns the task loss.
        config: All settings; None: the defaults.
        folder: Where `search.checkpoint`, `metrics.jsonl` and `plan.json` are written; None: nowhere.
        resume: Whether to continue from the checkpoint in the folder, if there is one. A finished search returns its
            plan at once.
        evaluate: `evaluate(model)` returns named numbers for the metrics; it runs in evaluation mode, without
            gradients, and does not influence training.
        teacher: The float network for `config.distillation`.
        progress: Whether progress is shown on the standard error.

    Returns:
        The plan that the gates decide on.

    Raises:
        BudgetError: The budget is below the smallest cost under the spec; nothing was trained.
        TrainingError: Training stopped, with the last checkpoint intact.
        Interrupted: A signal asked training to stop; a checkpoint was written if there is a folder.

    Example::

        >>> import torch, bayesbits as bb
        >>> compressor = bb.attach(torch.nn.Linear(4, 2), torch.zeros(1, 4), bb.Spec(bits=(4, 8)))
        >>> loader = [(torch.randn(8, 4), torch.randint(2, (8,)))]
        >>> config = bb.SearchConfig(epochs=1)
        >>> plan = bb.search(compressor, loader, torch.nn.functional.cross_entropy, config, progress=False)
        >>> plan.bits["weight"]
        8
    """
    config = SearchConfig() if config is None else config
    where = None if folder is None else Path(folder)
    run(Phase("search", compressor, loader, loss_fn, config, None, where, resume, evaluate, teacher, progress))
    budget = config.budget
    if budget is not None and not budget.allows(compressor.cost(table=budget.table)):  # too few steps to have settled
        compressor.project(budget, certain=True)
    plan = compressor.plan()
    if where is not None and is_first():
        _save_plan(plan, where / "plan.json")
    return plan


def finetune(
    compressor: Compressor,
    loader: Iterable[Any],
    loss_fn: LossFunction,
    config: FinetuneConfig | None = None,
    *,
    plan: Plan | None = None,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    evaluate: Evaluate | None = None,
    teacher: nn.Module | None = None,
    progress: bool = True,
) -> None:
    """Fix bits and channels, and train weights and ranges further, without a penalty.

    Args:
        compressor: The compressor that `attach` returned, with calibrated ranges.
        loader: Iterated once for every epoch; its batches are pairs (inputs, targets).
        loss_fn: `loss_fn(output, targets)` returns the task loss.
        config: All settings; None: the defaults.
        plan: The bits and channels to fix; None: those that the gates decide on.
        folder: Where `finetune.checkpoint` and `metrics.jsonl` are written; None: nowhere.
        resume: Whether to continue from the checkpoint in the folder, if there is one.
        evaluate: As in `search`.
        teacher: As in `search`.
        progress: Whether progress is shown on the standard error.

    Raises:
        TrainingError: Training stopped, with the last checkpoint intact.
        Interrupted: A signal asked training to stop; a checkpoint was written if there is a folder.

    Example::

        >>> import torch, bayesbits as bb
        >>> compressor = bb.attach(torch.nn.Linear(4, 2), torch.zeros(1, 4))
        >>> loader = [(torch.randn(8, 4), torch.randint(2, (8,)))]
        >>> compressor.calibrate(inputs for inputs, _ in loader)
        >>> plan = bb.Plan.uniform(compressor.topology, 4, 8)
        >>> config = bb.FinetuneConfig(epochs=1)
        >>> bb.finetune(compressor, loader, torch.nn.functional.cross_entropy, config, plan=plan, progress=False)
        >>> compressor.plan() == plan
        True
    """
    config = FinetuneConfig() if config is None else config
    where = None if folder is None else Path(folder)
    plan = compressor.plan() if plan is None else plan
    phase = Phase("finetune", compressor, loader, loss_fn, config, plan, where, resume, evaluate, teacher, progress)
    compressor.fix(plan)
    run(phase)


def _save_plan(plan: Plan, path: Path) -> None:
    try:
        plan.save(path)
    except OSError as error:
        raise TrainingError(
            f"the plan could not be written to {path} ({error}); the checkpoint beside it is complete: free some "
            "space, and call search again with resume=True"
        ) from error
