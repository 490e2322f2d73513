"""The two verbs of training: `search` learns bits and channels, `finetune` goes on with both of them final.

Both take any loader of pairs (inputs, targets) and any loss `loss_fn(output, targets)`. With a folder nothing is lost:
it holds `search.checkpoint`, `finetune.checkpoint`, `metrics.jsonl` and, after a search, `plan.json`.
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
from bayesbits.training.task import Evaluate, LossFunction, Task


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
    """Learn bits and channels together with the weights, and return what was decided; nothing is fixed yet.

    Ranges are calibrated from the loader if they are not known. The whole network is put into training mode; batch
    norms keep their statistics for the last part of training, and at the end every module is in the mode in which it
    was at the start. Everything random is seeded from `config.seed`.

    `evaluate(model)` gives named numbers for the metrics; it runs in evaluation mode, without gradients, and leaves no
    trace in training. `teacher` is the float network for `config.distillation`. With `resume` training goes on from the
    folder's checkpoint, if there is one, and a finished search gives its plan at once. Under torchrun every process
    calls this with its own part of the data; one process writes.

    The schedules need to know how long training is. Of a loader without a length the first epoch counts as not begun
    until it is over; then its length is known. Resuming is exact for loaders that draw from the global generators, from
    generators of their own that a DataLoader or its samplers carry, or from `set_epoch`.
    """
    config = SearchConfig() if config is None else config
    where = None if folder is None else Path(folder)
    run(Task("search", compressor, loader, loss_fn, config, None, where, resume, evaluate, teacher, progress))
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
    """Fix bits and channels by a plan, or as the gates have them, and train weights and ranges on, with no penalty.

    Everything else is as in `search`.
    """
    config = FinetuneConfig() if config is None else config
    where = None if folder is None else Path(folder)
    plan = compressor.plan() if plan is None else plan
    task = Task("finetune", compressor, loader, loss_fn, config, plan, where, resume, evaluate, teacher, progress)
    compressor.fix(plan)
    run(task)


def _save_plan(plan: Plan, path: Path) -> None:
    try:
        plan.save(path)
    except OSError as error:
        raise TrainingError(
            f"the plan could not be written to {path} ({error}); the checkpoint beside it is complete: make room, and "
            "call search again with resume=True"
        ) from error
