"""Where a run starts: anew, with everything seeded and ranges taken from data, or from a checkpoint."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bayesbits.training import randomness
from bayesbits.training.batches import Batches
from bayesbits.training.checkpoint import check_belongs, read_checkpoint
from bayesbits.training.config import SearchConfig
from bayesbits.training.device_loader import mix
from bayesbits.training.distributed import Ranks
from bayesbits.training.errors import TrainingError
from bayesbits.training.task import Task


def find_checkpoint(task: Task, ranks: Ranks, description: dict[str, Any]) -> dict[str, Any] | None:
    """What the first process finds to go on from, in all processes; None where there is nothing."""
    error, content, path = None, None, task.checkpoint
    if path is not None and ranks.first:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                if not task.resume:
                    raise TrainingError(
                        f"{path} is there from an earlier run: go on from it with resume=True, or choose another folder"
                    )
                content = read_checkpoint(path)
                check_belongs(path, content["description"], description)
        except (TrainingError, OSError) as problem:
            error = problem
    ranks.fail_together(error)
    found: dict[str, Any] | None = ranks.from_first(content)
    return found


def start_anew(task: Task, ranks: Ranks, batches: Batches) -> None:
    """Make all processes equal, seed everything random, and take ranges from data where they are not known."""
    config, attachment = task.config, task.compressor.attachment
    ranks.share_state(task.compressor.model)
    randomness.seed_everything(mix(config.seed, ranks.rank))
    attachment.bank.counter.copy_(torch.tensor([config.seed % 2**32, 0]))
    if isinstance(config, SearchConfig) and not attachment.calibrated:
        inputs = _first_inputs(batches, config.calibration_batches, ranks)
        task.compressor.calibrate(inputs, method=config.calibration)


def _first_inputs(batches: Batches, count: int, ranks: Ranks) -> Iterator[Any]:
    """The inputs of the first batches; those of all processes together, as one process with all of them has them."""
    own = batches.start(0)
    for _ in range(count):
        parts = ranks.gather(next(own, (None, None))[0])
        if any(part is None for part in parts):
            return
        yield _joined(parts, batches.device)


def _joined(parts: list[Any], device: torch.device) -> Any:
    """The inputs of all processes as one batch."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat([part.to(device) for part in parts]) if first.dim() else first
    if isinstance(first, dict):
        return {key: _joined([part[key] for part in parts], device) for key in first}
    if isinstance(first, tuple):
        return tuple(_joined(list(entries), device) for entries in zip(*parts, strict=True))
    return first
