"""What a user chooses about training: how long, how fast, at which price, and how the machine is used.

`SearchConfig` is for learning bits and channels, `FinetuneConfig` for what follows with both of them final. Every
default is the paper's, where the paper has one. Configurations are checked when they are made, before any work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from bayesbits.compression.range_estimation import METHODS
from bayesbits.utils.checks import check_choice, check_flag, check_integer, check_number, check_positive, is_number

OPTIMIZERS = ("adam", "sgd")
SCHEDULES = ("constant", "linear", "steps", "cosine")
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class OptimizerConfig:
    """How one group of parameters learns: the weights, the gates or the ranges."""

    optimizer: str = "adam"
    """"adam", or "sgd" with Nesterov momentum."""
    lr: float = 1e-3
    """The learning rate at the start."""
    schedule: str = "linear"
    """How the rate goes on: "constant"; "linear": to zero over the last third; "steps"; "cosine": to zero."""
    milestones: tuple[float, ...] = ()
    """Of the schedule "steps": after which parts of the training, between 0 and 1, the rate is a tenth of before."""
    momentum: float = 0.9
    """Of "sgd"."""
    weight_decay: float = 0.0
    """An L2 penalty, added to the gradient."""

    def __post_init__(self) -> None:
        check_choice(self, "optimizer", OPTIMIZERS)
        check_choice(self, "schedule", SCHEDULES)
        check_number(self, "lr", 0.0)
        check_number(self, "momentum", 0.0, 1.0)
        check_number(self, "weight_decay", 0.0)
        if not isinstance(self.milestones, tuple | list):
            raise ValueError(f"OptimizerConfig.milestones is {self.milestones!r}; it is a tuple such as (0.5, 0.75)")
        object.__setattr__(self, "milestones", tuple(self.milestones))
        if (self.schedule == "steps") != bool(self.milestones):
            raise ValueError(
                f"OptimizerConfig.milestones is {self.milestones}; the schedule 'steps' needs some, others none"
            )
        if not all(is_number(part) and 0 < part < 1 for part in self.milestones):
            raise ValueError(f"OptimizerConfig.milestones is {self.milestones}; they lie between 0 and 1")


@dataclass(frozen=True)
class _TrainingConfig:
    """What search and fine-tuning have in common."""

    epochs: int = 100
    """How often the loader is gone through."""
    epoch_steps: int | None = None
    """An epoch ends after so many batches, for loaders without an end or without a length; None: with the loader."""
    weights: OptimizerConfig = field(default_factory=OptimizerConfig)
    """How the weights learn."""
    ranges: OptimizerConfig = field(default_factory=OptimizerConfig)
    """How the ranges of the quantizers learn."""
    distillation: float = 0.0
    """The part of the loss, from 0 to 1, that asks for the outputs of a float teacher instead of the targets."""
    temperature: float = 4.0
    """The temperature at which outputs are compared in distillation."""
    precision: str = "float32"
    """"float32", or "bfloat16": layers run in it under autocast, on devices that have it."""
    channels_last: bool = False
    """Whether images and four-dimensional weights are laid out with the channels last, which GPUs like."""
    compile: bool = False
    """Whether the loss is compiled by torch.compile; where that fails, training goes on without and says so."""
    cuda_graph: bool = False
    """Whether the whole step is recorded as a CUDA graph; where that fails, training goes on without and says so."""
    seed: int = 0
    """The seed of everything random that the engine itself draws."""
    checkpoint_seconds: float = 60.0
    """How much work, in seconds, may be lost: a checkpoint is written this often, at the start and at the end."""
    log_steps: int = 50
    """Metrics are written every so many steps; the loss is read from the device only then."""
    evaluate_epochs: int = 1
    """The network is evaluated every so many epochs, and at the end, if there is something to evaluate with."""

    def __post_init__(self) -> None:
        for name in ("epochs", "seed"):
            check_integer(self, name, 0)
        for name in ("log_steps", "evaluate_epochs"):
            check_integer(self, name, 1)
        if self.epoch_steps is not None:
            check_integer(self, "epoch_steps", 1)
        check_number(self, "distillation", 0.0, 1.0)
        check_number(self, "checkpoint_seconds", 0.0)
        check_positive(self, "temperature")
        check_choice(self, "precision", PRECISIONS)
        for name in ("channels_last", "compile", "cuda_graph"):
            check_flag(self, name)
        for name in ("weights", "gates", "ranges"):
            if hasattr(self, name):
                object.__setattr__(self, name, _optimizer(self, name))


@dataclass(frozen=True)
class SearchConfig(_TrainingConfig):
    """How bits and channels are learned, together with the weights."""

    mu: float = 0.01
    """The weight of the penalty in the loss: more of it, fewer bits."""
    gates: OptimizerConfig = field(default_factory=OptimizerConfig)
    """How the gates learn."""
    frozen_statistics: float = 0.05
    """The last part of training, from 0 to 1, in which batch norms keep their statistics: the plan rests on them."""
    calibration: str = "minmax"
    """How ranges are taken from data before the first step; see `Compressor.calibrate`."""
    calibration_batches: int = 8
    """From how many batches of the loader; a compressor that is calibrated already keeps its ranges."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "mu", 0.0)
        check_number(self, "frozen_statistics", 0.0, 1.0)
        check_choice(self, "calibration", METHODS)
        check_integer(self, "calibration_batches", 1)


@dataclass(frozen=True)
class FinetuneConfig(_TrainingConfig):
    """How weights and ranges are trained on after bits and channels are final."""

    epochs: int = 10
    weights: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=1e-4, schedule="cosine"))
    ranges: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=1e-4, schedule="cosine"))
    frozen_statistics: float = 1.0
    """The last part of training, from 0 to 1, in which batch norms keep their statistics; 1: all of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "frozen_statistics", 0.0, 1.0)


def _optimizer(config: _TrainingConfig, name: str) -> OptimizerConfig:
    """A dict, as a recipe has it, becomes the configuration that it stands for."""
    given = getattr(config, name)
    if isinstance(given, OptimizerConfig):
        return given
    keys = [entry.name for entry in fields(OptimizerConfig)]
    if not isinstance(given, Mapping) or not given.keys() <= set(keys):
        raise ValueError(
            f"{type(config).__name__}.{name} is {given!r}; "
            f"it is an OptimizerConfig or a dict with keys of {', '.join(keys)}"
        )
    try:
        return OptimizerConfig(**given)
    except ValueError as error:
        raise ValueError(f"{type(config).__name__}.{name}: {error}") from None
