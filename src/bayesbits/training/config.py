"""The configurations of training: `SearchConfig`, `FinetuneConfig` and `OptimizerConfig`.

`SearchConfig` is for learning bits and channels, `FinetuneConfig` for the training that follows with both of them
fixed. Every default of an optimizer is the paper's where the paper has one, but for the learning rates of gates and
ranges in short searches; `gates={}` and `ranges={}` are the paper's. A configuration is checked when it is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

from bayesbits.compression.budget import Budget, as_budget
from bayesbits.compression.range_estimation import METHODS
from bayesbits.utils.checks import check_choice, check_flag, check_integer, check_number, check_positive, is_number

OPTIMIZERS = ("adam", "sgd")
SCHEDULES = ("constant", "linear", "steps", "cosine")
PRECISIONS = ("float32", "bfloat16")
DEFAULT_MU = 0.01  # the paper's

_GATE_DISTANCE = 7.0  # from the logit at which a gate starts, 6, to that of a closed one, about -0.9
_GATE_PART = 0.3  # the part of a search in which a gate can close
_BUDGET_GATE_DISTANCE, _BUDGET_GATE_PART = 4.0, 0.15  # with a budget, where gates start at 3 and follow a schedule
_MOST_GATE_LR = 0.5
_RANGE_DISTANCE = 1.0  # how far the logarithm of a range can go in a search, were its rate constant
_MOST_RANGE_LR = 0.1


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer and learning rate schedule of one group of parameters: the weights, the gates or the ranges.

    Args:
        optimizer: "adam", or "sgd" with Nesterov momentum.
        lr: The initial learning rate.
        schedule: "constant"; "linear": to zero over the last third of training; "steps": a tenth at each milestone;
            "cosine": to zero over the whole training.
        milestones: For the schedule "steps": the parts of training, between 0 and 1, after which the learning rate is
            divided by ten.
        momentum: The momentum of "sgd".
        weight_decay: The weight of the L2 penalty that is added to the gradient.

    Raises:
        ValueError: A value is not allowed; the message names the field.

    Example::

        >>> import bayesbits as bb
        >>> bb.OptimizerConfig(optimizer="sgd", lr=0.1, schedule="steps", milestones=(0.5, 0.75)).milestones
        (0.5, 0.75)
    """

    optimizer: str = "adam"
    """"adam", or "sgd" with Nesterov momentum."""
    lr: float = 1e-3
    """The initial learning rate."""
    schedule: str = "linear"
    """"constant"; "linear": to zero over the last third; "steps": a tenth at each milestone; "cosine": to zero."""
    milestones: tuple[float, ...] = ()
    """For the schedule "steps": the parts of training, between 0 and 1, after which the rate is divided by ten."""
    momentum: float = 0.9
    """The momentum of "sgd"."""
    weight_decay: float = 0.0
    """The weight of the L2 penalty that is added to the gradient."""

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
    """The fields that search and fine-tuning have in common."""

    _CHOSEN_BY_STEPS: ClassVar[tuple[str, ...]] = ()  # what may be None: the number of steps decides

    epochs: int = 100
    """The number of passes over the loader."""
    epoch_steps: int | None = None
    """The number of batches after which an epoch ends, for loaders without an end or without a length; None: an epoch
    ends with the loader."""
    weights: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Optimizer and schedule of the weights."""
    ranges: OptimizerConfig | None = field(default_factory=OptimizerConfig)
    """Optimizer and schedule of the quantizers' ranges."""
    distillation: float = 0.0
    """The weight of the distillation loss, from 0 to 1; the rest is the weight of the task loss."""
    temperature: float = 4.0
    """The softmax temperature of the distillation loss."""
    precision: str = "float32"
    """"float32", or "bfloat16": layers run in it under autocast."""
    channels_last: bool = False
    """Whether images and four-dimensional weights have the memory format channels_last, which is fast on GPUs."""
    compile: bool = False
    """Whether the loss is compiled by torch.compile; where that fails, training continues uncompiled and reports it."""
    cuda_graph: bool = False
    """Whether the whole step is recorded as a CUDA graph; where that fails, training continues without and reports it.
    """
    seed: int = 0
    """The seed of all random generators."""
    checkpoint_seconds: float = 60.0
    """The time between checkpoints in seconds; one is also written at the start and at the end."""
    log_steps: int = 50
    """The number of steps between lines of metrics; only then is the loss read from the device."""
    evaluate_epochs: int = 1
    """The number of epochs between evaluations; the last epoch is always evaluated."""

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
            if hasattr(self, name) and (name not in self._CHOSEN_BY_STEPS or getattr(self, name) is not None):
                object.__setattr__(self, name, _optimizer(self, name))


@dataclass(frozen=True)
class SearchConfig(_TrainingConfig):
    """How bits and channels are learned, together with the weights.

    Args:
        epochs: The number of passes over the loader.
        epoch_steps: The number of batches after which an epoch ends, for loaders without an end or without a length;
            None: an epoch ends with the loader.
        weights: Optimizer and schedule of the weights.
        ranges: Optimizer and schedule of the logarithms of the quantizers' ranges. None: Adam with a learning rate that
            follows from the number of steps, so that a range can change by a factor of two in any search, and at least
            the paper's, 1e-3, which is `ranges={}`.
        distillation: The weight of the distillation loss, from 0 to 1; the rest is the weight of the task loss.
        temperature: The softmax temperature of the distillation loss.
        precision: "float32", or "bfloat16": layers run in it under autocast.
        channels_last: Whether images and four-dimensional weights have the memory format channels_last, which is fast
            on GPUs.
        compile: Whether the loss is compiled by torch.compile; where that fails, training continues uncompiled and
            reports it.
        cuda_graph: Whether the whole step is recorded as a CUDA graph; where that fails, training continues without and
            reports it.
        seed: The seed of all random generators.
        checkpoint_seconds: The time between checkpoints in seconds; one is also written at the start and at the end.
        log_steps: The number of steps between lines of metrics; only then is the loss read from the device.
        evaluate_epochs: The number of epochs between evaluations; the last epoch is always evaluated.
        mu: The weight of the penalty in the loss: a larger one gives fewer bits. None: 0.01, or what the budget needs.
        budget: The most that the final network may cost: a `Budget`, or text such as "0.5% bops" or "500 kB". The
            weight of the penalty is then controlled, and `search` ends with a plan within the budget.
        latency_table: For a budget as text with a limit such as "2.5 ms": the file with the latency table.
        gates: Optimizer and schedule of the gates. None: Adam with a learning rate that follows from the number of
            steps, so that a gate can close in the first third of any search, and at least the paper's. The paper's
            optimizer is `gates={}`: 1e-3 for any number of steps.
        frozen_statistics: The last part of training, from 0 to 1, in which batch norm statistics are frozen: the plan
            is read with these.
        calibration: The method by which ranges are calibrated before the first step, where they are not known; see
            `Compressor.calibrate`. In a range that is made for many bits, as by "minmax", few bits look worse than they
            are, and their gates stay open.
        calibration_batches: The number of batches of the loader that are used for calibration.
        calibration_bits: The width at which calibration="mse" measures the squared error; None: the narrowest one that
            a tensor may have.

    Raises:
        ValueError: A value is not allowed; the message names the field.

    Example::

        >>> import bayesbits as bb
        >>> config = bb.SearchConfig(epochs=30, mu=0.05, gates={"lr": 1e-2}, calibration="minmax")
        >>> config.gates.lr
        0.01
    """

    _CHOSEN_BY_STEPS: ClassVar[tuple[str, ...]] = ("gates", "ranges")

    mu: float | None = None
    """The weight of the penalty in the loss: a larger one gives fewer bits. None: 0.01, or what the budget needs."""
    budget: Budget | None = None
    """The most that the final network may cost: a `Budget`, or text such as "0.5% bops" or "500 kB"."""
    latency_table: str | None = None
    """For a budget as text with a limit such as "2.5 ms": the file with the latency table."""
    gates: OptimizerConfig | None = None
    """Optimizer and schedule of the gates. None: Adam with a learning rate that follows from the number of steps."""
    ranges: OptimizerConfig | None = None
    """Optimizer and schedule of the ranges. None: Adam with a learning rate that follows from the number of steps."""
    frozen_statistics: float = 0.05
    """The last part of training, from 0 to 1, in which batch norm statistics are frozen: the plan is read with these.
    """
    calibration: str = "mse"
    """The method by which ranges are calibrated before the first step, where they are not known; see
    `Compressor.calibrate`."""
    calibration_batches: int = 8
    """The number of batches of the loader that are used for calibration."""
    calibration_bits: int | None = None
    """The width at which calibration="mse" measures the squared error; None: the narrowest one of each tensor."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "budget", as_budget(self.budget, "SearchConfig.budget", self.latency_table))
        if self.budget is not None and self.mu is not None:
            raise ValueError(
                f"SearchConfig.mu is {self.mu!r} and SearchConfig.budget is {self.budget}: the budget decides what the "
                "weight of the penalty is; give one of them"
            )
        if self.budget is None:
            object.__setattr__(self, "mu", DEFAULT_MU if self.mu is None else self.mu)
            check_number(self, "mu", 0.0)
        check_number(self, "frozen_statistics", 0.0, 1.0)
        check_choice(self, "calibration", METHODS)
        check_integer(self, "calibration_batches", 1)
        if self.calibration_bits is not None:
            check_integer(self, "calibration_bits", 1)


@dataclass(frozen=True)
class FinetuneConfig(_TrainingConfig):
    """How weights and ranges are trained further after bits and channels are fixed.

    Args:
        epochs: The number of passes over the loader.
        epoch_steps: The number of batches after which an epoch ends, for loaders without an end or without a length;
            None: an epoch ends with the loader.
        weights: Optimizer and schedule of the weights.
        ranges: Optimizer and schedule of the quantizers' ranges.
        distillation: The weight of the distillation loss, from 0 to 1; the rest is the weight of the task loss.
        temperature: The softmax temperature of the distillation loss.
        precision: "float32", or "bfloat16": layers run in it under autocast.
        channels_last: Whether images and four-dimensional weights have the memory format channels_last, which is fast
            on GPUs.
        compile: Whether the loss is compiled by torch.compile; where that fails, training continues uncompiled and
            reports it.
        cuda_graph: Whether the whole step is recorded as a CUDA graph; where that fails, training continues without and
            reports it.
        seed: The seed of all random generators.
        checkpoint_seconds: The time between checkpoints in seconds; one is also written at the start and at the end.
        log_steps: The number of steps between lines of metrics; only then is the loss read from the device.
        evaluate_epochs: The number of epochs between evaluations; the last epoch is always evaluated.
        frozen_statistics: The last part of training, from 0 to 1, in which batch norm statistics are frozen; 1: all of
            it.

    Raises:
        ValueError: A value is not allowed; the message names the field.

    Example::

        >>> import bayesbits as bb
        >>> config = bb.FinetuneConfig(epochs=5)
        >>> config.weights.lr, config.weights.schedule
        (0.0001, 'cosine')
    """

    epochs: int = 10
    """The number of passes over the loader."""
    weights: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=1e-4, schedule="cosine"))
    """Optimizer and schedule of the weights."""
    ranges: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=1e-4, schedule="cosine"))
    """Optimizer and schedule of the quantizers' ranges."""
    frozen_statistics: float = 1.0
    """The last part of training, from 0 to 1, in which batch norm statistics are frozen; 1: all of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "frozen_statistics", 0.0, 1.0)


def gate_optimizer(config: SearchConfig, steps: int) -> OptimizerConfig:
    """How gates learn in a search of so many steps.

    A step of Adam moves a logit by about the learning rate. The paper's is for tens of thousands of steps. With fewer
    steps the default is larger, so that a gate can close in the first third of any search.
    """
    if config.gates is not None:
        return config.gates
    paper = OptimizerConfig()
    if config.budget is None:
        lr = _GATE_DISTANCE / (_GATE_PART * max(1, steps))
    else:
        lr = _BUDGET_GATE_DISTANCE / (_BUDGET_GATE_PART * max(1, steps))
    return replace(paper, lr=min(_MOST_GATE_LR, max(paper.lr, lr)))


def range_optimizer(config: SearchConfig | FinetuneConfig, steps: int) -> OptimizerConfig:
    """How ranges learn in a training of so many steps.

    A step of Adam moves the logarithm of a range by about the learning rate: at the paper's 1e-3, 200 steps change a
    range by a fifth. An activation of a network that is not trained yet may grow much more, and what lies outside of
    its range is clipped and has no gradient.
    """
    if config.ranges is not None:
        return config.ranges
    paper = OptimizerConfig()
    return replace(paper, lr=min(_MOST_RANGE_LR, max(paper.lr, _RANGE_DISTANCE / max(1, steps))))


def _optimizer(config: _TrainingConfig, name: str) -> OptimizerConfig:
    """The optimizer configuration of a group; a dict, as a recipe has it, is converted."""
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
