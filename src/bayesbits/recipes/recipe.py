"""What a recipe holds: data, network, spec, how it is trained, and a seed.

A recipe is a TOML file with a table for each part: `[data]`, `[model]`, `[task]`, `[spec]`, `[float]`, `[search]`,
`[finetune]`.
Here are the parts as checked records; `reading` makes them from a file and `writing` writes them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bayesbits.compression.spec import Spec
from bayesbits.training import FinetuneConfig, OptimizerConfig, SearchConfig

IMAGE_FOLDER = "image_folder"
TASKS = CLASSIFICATION, SEGMENTATION, REGRESSION = ("classification", "segmentation", "regression")
LOSSES = ("cross_entropy", "mse", "mae")
METRICS = ("accuracy", "mean_iou", "pixel_accuracy", "mse", "mae", "r2")
IGNORED = -100  # the target that F.cross_entropy leaves out by default


@dataclass(frozen=True)
class DataConfig:
    """What is trained on."""

    name: str
    """A data set of the zoo, "image_folder", or a factory of the user's: "package.module:function"."""
    folder: str | None = None
    """Where its files are; without one, where `bayesbits.zoo.data` looks. "image_folder" needs it."""
    batch_size: int = 128
    """Examples in a batch, those of all processes together."""
    padding: int = 0
    """Training images are padded by this many pixels and cut back to their size at a random place."""
    flip: bool = False
    """Whether half of the training images, drawn anew each time, are mirrored left to right."""
    standardize: bool = True
    """Whether pixels get mean 0 and deviation 1, by those of the training images; otherwise black is 0 and white 1."""
    validation: int = 0
    """How many training images are held back and looked at after every epoch; 0: none. The test set never is."""
    workers: int = 4
    """Processes that read pictures, for "image_folder"; data sets of the zoo lie in memory."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the data set takes beside these, such as `size`; a factory gets them as keyword arguments."""

    def __post_init__(self) -> None:
        _check(self, "name", str)
        _check(self, "folder", str | None)
        _check(self, "flip", bool)
        _check(self, "standardize", bool)
        _check(self, "options", Mapping)
        for name, least in (("batch_size", 1), ("padding", 0), ("validation", 0), ("workers", 0)):
            _check_integer(self, name, least)

    @property
    def factory(self) -> bool:
        """Whether the data come from a function of the user's."""
        return ":" in self.name


@dataclass(frozen=True)
class ModelConfig:
    """Which network is compressed."""

    name: str
    """A network of the zoo, or a factory of the user's: "package.module:function"."""
    checkpoint: str | None = None
    """A file with trained weights to start from: a state_dict, plain or in one of the usual wrappings."""
    pretrained: bool = False
    """Whether the recipe is meant for trained weights: it is refused without a checkpoint or a `[float]` table."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the constructor or the factory takes. Networks of the zoo are given the data's `num_classes` unasked."""

    def __post_init__(self) -> None:
        _check(self, "name", str)
        _check(self, "checkpoint", str | None)
        _check(self, "pretrained", bool)
        _check(self, "options", Mapping)

    @property
    def factory(self) -> bool:
        """Whether the network comes from a function of the user's."""
        return ":" in self.name


@dataclass(frozen=True)
class TaskConfig:
    """What the network is asked for."""

    name: str = CLASSIFICATION
    """"classification", "segmentation" or "regression": loss and metric, where they are not given."""
    loss: str | None = None
    """"cross_entropy", "mse", "mae", or a function of the user's: "package.module:function"."""
    metric: str | None = None
    """"accuracy", "mean_iou", "pixel_accuracy", "mse", "mae", "r2", or "package.module:function"."""
    higher_is_better: bool | None = None
    """Of a metric of the user's: whether more is better."""
    ignore_index: int = IGNORED
    """The class number of places and examples that do not count."""

    @property
    def loss_name(self) -> str:
        """The loss that is meant: the one that is given, or the task's."""
        return self.loss or ("mse" if self.name == REGRESSION else "cross_entropy")

    @property
    def has_logits(self) -> bool:
        """Whether the softmax of an output's last axis are the probabilities of classes."""
        numbers = ("mse", "mae", "r2", "mean_iou", "pixel_accuracy")
        return self.name == CLASSIFICATION and not {self.loss_name, self.metric} & set(numbers)

    def __post_init__(self) -> None:
        if self.name not in TASKS:
            raise ValueError(f"name is {self.name!r}; it is one of {', '.join(TASKS)}")
        for name, known in (("loss", LOSSES), ("metric", METRICS)):
            value = getattr(self, name)
            if value is not None and value not in known and ":" not in str(value):
                raise ValueError(f"{name} is {value!r}; it is one of {', '.join(known)}, or package.module:function")
        if self.higher_is_better is not None:
            _check(self, "higher_is_better", bool)
            if ":" not in (self.metric or ""):
                raise ValueError("higher_is_better is for a metric of your own; of the named ones it is known")
        if not isinstance(self.ignore_index, int) or isinstance(self.ignore_index, bool):
            raise ValueError(f"ignore_index is {self.ignore_index!r}; it is an integer")


@dataclass(frozen=True)
class FloatConfig(FinetuneConfig):
    """How the float network is trained first: as fine-tuning, with nothing quantized."""

    weights: OptimizerConfig = field(default_factory=OptimizerConfig)
    frozen_statistics: float = 0.0


@dataclass(frozen=True)
class Recipe:
    """Everything that a run depends on but the machine."""

    name: str
    """What it is called; the name of its file, if it does not say."""
    data: DataConfig
    """What is trained on."""
    model: ModelConfig
    """The network."""
    task: TaskConfig = field(default_factory=TaskConfig)
    """What it is asked for: loss and metric."""
    spec: Spec = field(default_factory=Spec)
    """How the network may be compressed."""
    float_training: FloatConfig | None = None
    """The table `[float]`: training of the float network before the search; None: none."""
    search: SearchConfig = field(default_factory=SearchConfig)
    """How bits and channels are learned."""
    finetune: FinetuneConfig | None = None
    """What follows with both of them final; None: nothing."""
    seed: int = 0
    """The seed of everything that is random."""
    description: str = ""
    """One sentence for the list of recipes."""
    source: str = ""
    """Where the settings come from, and where they deviate."""

    def __post_init__(self) -> None:
        for name in ("name", "description", "source"):
            _check(self, name, str)
        _check_integer(self, "seed", 0)
        trained = self.model.checkpoint is not None or self.float_training is not None
        stages = {"search": self.search, "finetune": self.finetune}
        for stage, config in stages.items():
            if config is not None and config.distillation > 0 and not self.task.has_logits:
                raise ValueError(
                    f"{stage}.distillation is {config.distillation:g}, and the task is not to tell classes "
                    "apart: what is learned from a teacher are the probabilities of classes"
                )
            if config is not None and config.distillation > 0 and not trained:
                raise ValueError(
                    f"{stage}.distillation is {config.distillation:g}, but there is no trained float network to learn "
                    "from: give model.checkpoint or a [float] table"
                )
        if self.model.checkpoint is not None and self.float_training is not None:
            raise ValueError(
                "model.checkpoint is given beside [float]: the float network is loaded or trained, not both"
            )


def _check(config: object, name: str, expected: Any) -> None:
    value = getattr(config, name)
    if not isinstance(value, expected):
        what = {str: "text", str | None: "text", bool: "true or false", Mapping: "a table"}[expected]
        raise ValueError(f"{name} is {value!r}; it is {what}")


def _check_integer(config: object, name: str, least: int) -> None:
    value = getattr(config, name)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is {value!r}; it is an integer of at least {least}")
