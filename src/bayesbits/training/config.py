"""What a user chooses about training: how long, how fast, at which price, and how the machine is used.

`SearchConfig` is for learning bits and channels, `FinetuneConfig` for what follows with both of them final. Every
default is the paper's, where the paper has one. Configurations are checked when they are made, before any work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

OPTIMIZERS = ("adam", "sgd")
SCHEDULES = ("constant", "linear", "steps", "cosine")
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class OptimizerConfig:
    """How one group of parameters learns: the weights, the gates or the ranges."""

    kind: str = "adam"
    """"adam", or "sgd" with Nesterov momentum."""
    rate: float = 1e-3
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
        _check_choice(self, "kind", OPTIMIZERS)
        _check_choice(self, "schedule", SCHEDULES)
        _check_number(self, "rate", 0.0)
        _check_number(self, "momentum", 0.0, 1.0)
        _check_number(self, "weight_decay", 0.0)
        object.__setattr__(self, "milestones", tuple(self.milestones))
        if (self.schedule == "steps") != bool(self.milestones):
            raise ValueError(
                f"{_name(self)}.milestones is {self.milestones}; the schedule 'steps' needs some, others none"
            )
        if not all(isinstance(part, int | float) and 0 < part < 1 for part in self.milestones):
            raise ValueError(f"{_name(self)}.milestones is {self.milestones}; they lie between 0 and 1")


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
            _check_integer(self, name, 0)
        for name in ("log_steps", "evaluate_epochs"):
            _check_integer(self, name, 1)
        if self.epoch_steps is not None:
            _check_integer(self, "epoch_steps", 1)
        _check_number(self, "distillation", 0.0, 1.0)
        _check_number(self, "checkpoint_seconds", 0.0)
        _check_number(self, "temperature", 0.0)
        if self.temperature == 0:
            raise ValueError(f"{_name(self)}.temperature is 0; it is a positive number")
        _check_choice(self, "precision", PRECISIONS)
        for name in ("channels_last", "compile", "cuda_graph"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{_name(self)}.{name} is {getattr(self, name)!r}; it is True or False")
        for entry in fields(self):
            if entry.type == "OptimizerConfig":
                object.__setattr__(self, entry.name, _optimizer(self, entry.name))


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
        _check_number(self, "mu", 0.0)
        _check_number(self, "frozen_statistics", 0.0, 1.0)
        _check_integer(self, "calibration_batches", 1)


@dataclass(frozen=True)
class FinetuneConfig(_TrainingConfig):
    """How weights and ranges are trained on after bits and channels are final."""

    epochs: int = 10
    weights: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(rate=1e-4, schedule="cosine"))
    ranges: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(rate=1e-4, schedule="cosine"))
    frozen_statistics: float = 1.0
    """The last part of training, from 0 to 1, in which batch norms keep their statistics; 1: all of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_number(self, "frozen_statistics", 0.0, 1.0)


def _optimizer(config: _TrainingConfig, name: str) -> OptimizerConfig:
    """A dict, as a recipe has it, becomes the configuration that it stands for."""
    given = getattr(config, name)
    if isinstance(given, OptimizerConfig):
        return given
    keys = [entry.name for entry in fields(OptimizerConfig)]
    if not isinstance(given, Mapping) or not given.keys() <= set(keys):
        raise ValueError(
            f"{_name(config)}.{name} is {given!r}; it is an OptimizerConfig or a dict with keys of {', '.join(keys)}"
        )
    try:
        return OptimizerConfig(**given)
    except ValueError as error:
        raise ValueError(f"{_name(config)}.{name}: {error}") from None


def _name(config: object) -> str:
    return type(config).__name__


def _check_choice(config: object, name: str, allowed: tuple[str, ...]) -> None:
    value = getattr(config, name)
    if value not in allowed:
        raise ValueError(f"{_name(config)}.{name} is {value!r}; it is one of {', '.join(allowed)}")


def _check_integer(config: object, name: str, least: int) -> None:
    value: Any = getattr(config, name)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{_name(config)}.{name} is {value!r}; it is an integer of at least {least}")


def _check_number(config: object, name: str, least: float, most: float = math.inf) -> None:
    value: Any = getattr(config, name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most or value == math.inf:
        bounds = f"of at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        raise ValueError(f"{_name(config)}.{name} is {value!r}; it is a number {bounds}")
