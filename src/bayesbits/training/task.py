"""What a phase of training is called with, and how far it is."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bayesbits.compression.compressor import Compressor
from bayesbits.records.plan import Plan
from bayesbits.training.config import FinetuneConfig, SearchConfig

LossFunction = Callable[[Any, Any], Tensor]
Evaluate = Callable[[nn.Module], dict[str, float]]


@dataclass(frozen=True)
class Task:
    """What a phase of training is called with; see `loop` for what each of these means."""

    phase: str
    """"search" or "finetune"."""
    compressor: Compressor
    loader: Iterable[Any]
    loss_fn: LossFunction
    config: SearchConfig | FinetuneConfig
    plan: Plan | None
    """What is fixed before fine-tuning; a search has none."""
    folder: Path | None
    resume: bool
    evaluate: Evaluate | None
    teacher: nn.Module | None
    progress: bool

    def __post_init__(self) -> None:
        """Raise where something is wrong, before any work."""
        if not isinstance(self.compressor, Compressor):
            raise TypeError(
                f"{self.phase} takes what bayesbits.attach returns, and this is a {type(self.compressor).__name__}"
            )
        wanted = SearchConfig if self.phase == "search" else FinetuneConfig
        if not isinstance(self.config, wanted):
            raise TypeError(
                f"{self.phase} takes a {wanted.__name__}, and the configuration is a {type(self.config).__name__}"
            )
        if self.resume and self.folder is None:
            raise ValueError("resume=True goes on from the checkpoint in a folder, and none was given")
        if (self.teacher is None) != (self.config.distillation == 0):
            raise ValueError(
                f"distillation is {self.config.distillation:g} and there is {'no' if self.teacher is None else 'a'} "
                "teacher: learning from a teacher needs both, learning without one neither"
            )

    @property
    def mu(self) -> float:
        """The weight of the penalty in the loss."""
        return self.config.mu if isinstance(self.config, SearchConfig) else 0.0

    @property
    def checkpoint(self) -> Path | None:
        """Where the checkpoint of this phase is."""
        return None if self.folder is None else self.folder / f"{self.phase}.checkpoint"

    @property
    def way_on(self) -> str:
        """For messages: what is left to go on from."""
        if self.checkpoint is None:
            return "there is no folder with a checkpoint to go on from"
        return f"the last good checkpoint is intact, and resume=True goes on from it: {self.checkpoint}"


@dataclass
class Position:
    """How far a run is."""

    epoch: int = 0
    batch: int = 0
    """How many batches of the epoch are done."""
    step: int = 0
    """How many batches are done in all."""
    length: int | None = None
    """How many batches an epoch has: as the loader says, or as the last whole epoch had; None: not known yet."""
    seconds: float = 0.0
    """How long the run has taken, in all of its sittings."""

    def epochs_done(self, ahead: int = 0) -> float:
        """How many epochs are done, with fractions, when `ahead` more batches of this one are.

        A loader without a length is taken to be at its epoch's start until a whole epoch has been seen.
        """
        return self.epoch + (min(1.0, (self.batch + ahead) / self.length) if self.length else 0.0)

    def __str__(self) -> str:
        return f"{self.step} steps (epoch {self.epoch}, batch {self.batch})"
