"""A phase of training: its arguments, its position, and its start from a checkpoint or from the beginning."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.compression.budget import Budget
from bayesbits.compression.compressor import Compressor, check_gated
from bayesbits.compression.smallest_plan import check_reachable
from bayesbits.records.plan import Plan
from bayesbits.training import randomness
from bayesbits.training.batches import Batches
from bayesbits.training.budget_control import start_gates
from bayesbits.training.checkpoint import check_description, read_checkpoint
from bayesbits.training.config import FinetuneConfig, SearchConfig
from bayesbits.training.distributed import Ranks
from bayesbits.training.errors import TrainingError
from bayesbits.training.step import LossFunction

Evaluate = Callable[[nn.Module], dict[str, float]]


@dataclass(frozen=True)
class Phase:
    """The arguments of a phase; `search` and `finetune` explain them."""

    name: str
    """"search" or "finetune"."""
    compressor: Compressor
    loader: Iterable[Any]
    loss_fn: LossFunction
    config: SearchConfig | FinetuneConfig
    plan: Plan | None
    """The plan that was fixed before fine-tuning; a search has none."""
    folder: Path | None
    resume: bool
    evaluate: Evaluate | None
    teacher: nn.Module | None
    progress: bool

    def __post_init__(self) -> None:
        """Raise for wrong arguments before training starts."""
        if not isinstance(self.compressor, Compressor):
            raise TypeError(
                f"{self.name} takes what bayesbits.attach returns, and this is a {type(self.compressor).__name__}"
            )
        wanted = SearchConfig if self.name == "search" else FinetuneConfig
        if not isinstance(self.config, wanted):
            raise TypeError(
                f"{self.name} takes a {wanted.__name__}, and the configuration is a {type(self.config).__name__}"
            )
        if self.resume and self.folder is None:
            raise ValueError("resume=True continues from the checkpoint in a folder, and no folder was given")
        if (self.teacher is None) != (self.config.distillation == 0):
            raise ValueError(
                f"distillation is {self.config.distillation:g} and there is {'no' if self.teacher is None else 'a'} "
                "teacher: distillation needs a teacher and a positive weight, training without it neither"
            )

    @property
    def mu(self) -> float:
        """The weight of the penalty in the loss; 0 where a budget controls it."""
        return (self.config.mu or 0.0) if isinstance(self.config, SearchConfig) else 0.0

    @property
    def budget(self) -> Budget | None:
        """The budget of a search; None where there is none."""
        return self.config.budget if isinstance(self.config, SearchConfig) else None

    @property
    def checkpoint(self) -> Path | None:
        """The path of this phase's checkpoint."""
        return None if self.folder is None else self.folder / f"{self.name}.checkpoint"

    @property
    def how_to_resume(self) -> str:
        """For messages: where the last checkpoint is."""
        if self.checkpoint is None:
            return "there is no folder, and so no checkpoint to resume from"
        return f"the last checkpoint is intact, and resume=True continues from it: {self.checkpoint}"


@dataclass
class Position:
    """How far a phase is."""

    epoch: int = 0
    batch: int = 0
    """The number of batches of this epoch that are done."""
    step: int = 0
    """The number of batches that are done in all."""
    length: int | None = None
    """The number of batches in an epoch: the loader's length, or that of the last epoch; None: not known yet."""
    seconds: float = 0.0
    """The duration of the phase so far, with the time before interruptions."""

    def epochs_done(self, ahead: int = 0) -> float:
        """The number of epochs done, with fractions, once `ahead` more batches of this epoch are done.

        For a loader without a length the first epoch counts as 0 until it is over.
        """
        return self.epoch + (min(1.0, (self.batch + ahead) / self.length) if self.length else 0.0)

    def __str__(self) -> str:
        return f"{self.step} steps (epoch {self.epoch}, batch {self.batch})"


def check_budget(phase: Phase, batches: int | None) -> None:
    """Raise before any training where a search cannot end within its budget; `batches` is the length of an epoch."""
    assert phase.budget is not None
    check_gated(phase.compressor, "a budget")
    check_reachable(phase.compressor.attachment, phase.budget)
    if batches is None:
        raise ValueError(
            "the loader has no length, and a search with a budget has to know how many steps it has: give epoch_steps "
            "in the configuration, or a loader with __len__"
        )


def find_checkpoint(phase: Phase, ranks: Ranks, description: dict[str, Any]) -> dict[str, Any] | None:
    """The content of the checkpoint that the first process finds, in all processes; None where there is none."""
    error, content, path = None, None, phase.checkpoint
    if path is not None and ranks.is_first:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                if not phase.resume:
                    raise TrainingError(
                        f"{path} exists from an earlier run: continue it with resume=True, or choose another folder"
                    )
                content = read_checkpoint(path)
                check_description(path, content["description"], description)
        except (TrainingError, OSError) as problem:
            error = problem
    ranks.raise_together(error)
    found: dict[str, Any] | None = ranks.broadcast(content)
    return found


def start_training(phase: Phase, ranks: Ranks, batches: Batches) -> None:
    """Copy the first process's network to all, seed all random generators, and calibrate ranges that are not known."""
    config, attachment = phase.config, phase.compressor.attachment
    ranks.broadcast_state(phase.compressor.model)
    randomness.seed_everything(randomness.mix_seed(config.seed, ranks.rank))
    attachment.bank.counter.copy_(torch.tensor([config.seed % 2**32, 0]))
    if isinstance(config, SearchConfig) and not attachment.calibrated:
        inputs = _first_inputs(batches, config.calibration_batches, ranks)
        phase.compressor.calibrate(inputs, method=config.calibration, reference_bits=config.calibration_bits)
    if phase.budget is not None:
        start_gates(phase.compressor)


def _first_inputs(batches: Batches, count: int, ranks: Ranks) -> Iterator[Any]:
    """The inputs of the first batches, those of all processes joined."""
    own = batches.start(0)
    for _ in range(count):
        parts = ranks.gather(next(own, (None, None))[0])
        if any(part is None for part in parts):
            return
        yield _concatenate(parts, batches.device)


def _concatenate(parts: list[Any], device: torch.device) -> Any:
    """The inputs of all processes as one batch."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat([part.to(device) for part in parts]) if first.dim() else first
    if isinstance(first, dict):
        return {key: _concatenate([part[key] for part in parts], device) for key in first}
    if isinstance(first, tuple):
        return tuple(_concatenate(list(entries), device) for entries in zip(*parts, strict=True))
    return first
