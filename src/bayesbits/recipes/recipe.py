"""The content of a recipe: data, network, task, spec, the stages of training, and a seed.

A recipe is a TOML file with one table for each part: `[data]`, `[model]`, `[task]`, `[spec]`, `[float]`, `[search]` and
`[finetune]`. This file defines the parts as records that are checked when they are made. `toml` reads them from a file
and writes them to one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bayesbits.compression.spec import Spec
from bayesbits.training import FinetuneConfig, OptimizerConfig, SearchConfig
from bayesbits.utils.checks import check_choice, check_flag, check_integer, check_type, is_integer

IMAGE_FOLDER = "image_folder"
IMAGENET = "imagenet"
TASKS = CLASSIFICATION, SEGMENTATION, REGRESSION = ("classification", "segmentation", "regression")
LOSSES = ("cross_entropy", "mse", "mae")
METRICS = ("accuracy", "mean_iou", "pixel_accuracy", "mse", "mae", "r2")
IGNORED = -100  # the target that F.cross_entropy leaves out by default


@dataclass(frozen=True)
class DataConfig:
    """The table `[data]`: the data set, its batches and its augmentation.

    Args:
        name: A data set of the zoo, "image_folder", or a function of the user's: "package.module:function".
        folder: The folder with the files of the data set. Without it the usual folders are searched; "image_folder"
            requires it.
        batch_size: The number of examples in a batch, over all processes together.
        padding: Training images are padded by this many pixels and cropped to their size at a random position.
        flip: Whether training images are mirrored left to right at random, half of them on average.
        standardize: Whether pixels get mean 0 and standard deviation 1 over the training images. Otherwise black is 0
            and white is 1. "imagenet" takes ImageNet's mean and standard deviation, which published weights expect.
        validation: The number of training images that are held back to evaluate the network after every epoch.
        workers: The number of processes that read pictures for "image_folder". Data sets of the zoo lie in memory.
        options: Further keyword arguments of the data set or of the function, such as `size`.

    Raises:
        ValueError: If an option has the wrong type or is out of its range.

    Example::

        >>> from bayesbits.recipes import DataConfig
        >>> DataConfig("cifar10", padding=4, flip=True).batch_size
        128
    """

    name: str
    """A data set of the zoo, "image_folder", or a function of the user's: "package.module:function"."""
    folder: str | None = None
    """The folder with the files of the data set; without it the usual folders are searched."""
    batch_size: int = 128
    """The number of examples in a batch, over all processes together."""
    padding: int = 0
    """Training images are padded by this many pixels and cropped to their size at a random position."""
    flip: bool = False
    """Whether training images are mirrored left to right at random, half of them on average."""
    standardize: bool | str = True
    """Whether pixels get mean 0 and standard deviation 1 over the training images; otherwise black is 0, white is 1.
    "imagenet" takes ImageNet's mean and standard deviation, which published weights expect."""
    validation: int = 0
    """The number of training images that are held back to evaluate the network after every epoch."""
    workers: int = 4
    """The number of processes that read pictures for "image_folder"."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further keyword arguments of the data set or of the function, such as `size`."""

    def __post_init__(self) -> None:
        check_type(self, "name", str, "text")
        check_type(self, "folder", str | None, "text")
        check_flag(self, "flip")
        if not isinstance(self.standardize, bool) and self.standardize != IMAGENET:
            raise ValueError(f'DataConfig.standardize is {self.standardize!r}; it is True, False or "{IMAGENET}"')
        check_type(self, "options", Mapping, "a table")
        for name, least in (("batch_size", 1), ("padding", 0), ("validation", 0), ("workers", 0)):
            check_integer(self, name, least)

    @property
    def factory(self) -> bool:
        """Whether the data come from a function of the user's."""
        return ":" in self.name


@dataclass(frozen=True)
class ModelConfig:
    """The table `[model]`: the network to compress.

    Args:
        name: A network of the zoo, or a function of the user's: "package.module:function".
        checkpoint: A file with trained weights to start from: a state_dict, plain or in one of the usual wrappings.
        pretrained: Whether the recipe requires trained weights. Then it is refused without a checkpoint or a `[float]`
            table.
        options: Keyword arguments of the network or of the function. Networks of the zoo also get the `num_classes` of
            the data.

    Raises:
        ValueError: If an option has the wrong type.

    Example::

        >>> from bayesbits.recipes import ModelConfig
        >>> ModelConfig("my_package.networks:build", options={"width": 64}).factory
        True
    """

    name: str
    """A network of the zoo, or a function of the user's: "package.module:function"."""
    checkpoint: str | None = None
    """A file with trained weights to start from: a state_dict, plain or in one of the usual wrappings."""
    pretrained: bool = False
    """Whether the recipe requires trained weights: it is refused without a checkpoint or a `[float]` table."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the network or of the function; networks of the zoo also get the data's `num_classes`."""

    def __post_init__(self) -> None:
        check_type(self, "name", str, "text")
        check_type(self, "checkpoint", str | None, "text")
        check_flag(self, "pretrained")
        check_type(self, "options", Mapping, "a table")

    @property
    def factory(self) -> bool:
        """Whether the network comes from a function of the user's."""
        return ":" in self.name


@dataclass(frozen=True)
class TaskConfig:
    """The table `[task]`: the loss to train with and the metric to evaluate with.

    Args:
        name: "classification", "segmentation" or "regression". It decides loss and metric where they are not given.
        loss: "cross_entropy", "mse", "mae", or a function of the user's: "package.module:function".
        metric: "accuracy", "mean_iou", "pixel_accuracy", "mse", "mae", "r2", or "package.module:function".
        higher_is_better: Whether a higher value of the user's own metric is better.
        ignore_index: The class number that marks examples and pixels to leave out of loss and metrics.

    Raises:
        ValueError: If a name is not known, or `higher_is_better` is given for a named metric.

    Example::

        >>> from bayesbits.recipes import TaskConfig
        >>> TaskConfig("regression").loss_name
        'mse'
    """

    name: str = CLASSIFICATION
    """"classification", "segmentation" or "regression"; it decides loss and metric where they are not given."""
    loss: str | None = None
    """"cross_entropy", "mse", "mae", or a function of the user's: "package.module:function"."""
    metric: str | None = None
    """"accuracy", "mean_iou", "pixel_accuracy", "mse", "mae", "r2", or "package.module:function"."""
    higher_is_better: bool | None = None
    """Whether a higher value of the user's own metric is better."""
    ignore_index: int = IGNORED
    """The class number that marks examples and pixels to leave out of loss and metrics."""

    @property
    def loss_name(self) -> str:
        """The name of the loss: the given one, or that of the task."""
        return self.loss or ("mse" if self.name == REGRESSION else "cross_entropy")

    @property
    def has_logits(self) -> bool:
        """Whether the softmax over an output's last axis gives the probabilities of classes."""
        others = ("mse", "mae", "r2", "mean_iou", "pixel_accuracy")
        return self.name == CLASSIFICATION and not {self.loss_name, self.metric} & set(others)

    def __post_init__(self) -> None:
        check_choice(self, "name", TASKS)
        for name, known in (("loss", LOSSES), ("metric", METRICS)):
            value = getattr(self, name)
            if value is not None and value not in known and ":" not in str(value):
                raise ValueError(
                    f"TaskConfig.{name} is {value!r}; it is one of {', '.join(known)}, or package.module:function"
                )
        if self.higher_is_better is not None:
            check_flag(self, "higher_is_better")
            if ":" not in (self.metric or ""):
                raise ValueError(
                    "TaskConfig.higher_is_better is given for a named metric; it is only for a metric of your own"
                )
        if not is_integer(self.ignore_index):
            raise ValueError(f"TaskConfig.ignore_index is {self.ignore_index!r}; it is an integer")


@dataclass(frozen=True)
class FloatConfig(FinetuneConfig):
    """The table `[float]`: training of the float network before the search.

    The options are those of `bayesbits.FinetuneConfig`. `ranges`, `distillation` and `temperature` have no effect, as
    nothing is quantized and there is no teacher, and a recipe file does not accept them.

    Args:
        epochs: The number of passes over the loader.
        epoch_steps: The number of batches of an epoch; None takes all batches of the loader.
        weights: How the weights learn; by default with Adam at a learning rate of 1e-3.
        ranges: Has no effect.
        distillation: Has no effect.
        temperature: Has no effect.
        precision: "float32", or "bfloat16" for layers that run under autocast.
        channels_last: Whether images and weights are stored in the memory format `torch.channels_last`.
        compile: Whether the loss is compiled by `torch.compile`.
        cuda_graph: Whether the whole step is recorded as a CUDA graph.
        seed: The seed of every random choice of the training loop.
        checkpoint_seconds: The time between two checkpoints in seconds.
        log_steps: The number of steps between two lines of metrics.
        evaluate_epochs: The number of epochs between two evaluations.
        frozen_statistics: The last part of training, from 0 to 1, in which batch norms keep their statistics.

    Example::

        >>> from bayesbits.recipes import FloatConfig
        >>> FloatConfig(epochs=20).weights.lr
        0.001
    """

    weights: OptimizerConfig = field(default_factory=OptimizerConfig)
    """How the weights learn."""
    frozen_statistics: float = 0.0
    """The last part of training, from 0 to 1, in which batch norms keep their statistics."""


@dataclass(frozen=True)
class Recipe:
    """Everything that a run depends on except the machine.

    Args:
        name: The name of the recipe; by default that of its file.
        data: The data set and its batches.
        model: The network.
        task: The loss and the metric.
        spec: The options of compressing the network.
        float_training: The table `[float]`: training of the float network before the search. None leaves it out.
        search: How bits and channels are learned.
        finetune: How the network is trained once bits and channels are final. None leaves it out.
        seed: The seed of every random choice.
        description: One sentence for the list of recipes.
        source: Where the settings come from, and where they differ from it.

    Raises:
        ValueError: If two parts contradict each other.

    Example::

        >>> from bayesbits.recipes import DataConfig, ModelConfig, Recipe
        >>> recipe = Recipe("mine", DataConfig("digits"), ModelConfig("lenet5"))
        >>> recipe.search.mu
        0.01
    """

    name: str
    """The name of the recipe; by default that of its file."""
    data: DataConfig
    """The data set and its batches."""
    model: ModelConfig
    """The network."""
    task: TaskConfig = field(default_factory=TaskConfig)
    """The loss and the metric."""
    spec: Spec = field(default_factory=Spec)
    """The options of compressing the network."""
    float_training: FloatConfig | None = None
    """The table `[float]`: training of the float network before the search; None leaves it out."""
    search: SearchConfig = field(default_factory=SearchConfig)
    """How bits and channels are learned."""
    finetune: FinetuneConfig | None = None
    """How the network is trained once bits and channels are final; None leaves it out."""
    seed: int = 0
    """The seed of every random choice."""
    description: str = ""
    """One sentence for the list of recipes."""
    source: str = ""
    """Where the settings come from, and where they differ from it."""

    def __post_init__(self) -> None:
        for name in ("name", "description", "source"):
            check_type(self, name, str, "text")
        check_integer(self, "seed", 0)
        trained = self.model.checkpoint is not None or self.float_training is not None or self.model.pretrained
        stages = {"search": self.search, "finetune": self.finetune}
        for stage, config in stages.items():
            if config is not None and config.distillation > 0 and not self.task.has_logits:
                raise ValueError(
                    f"{stage}.distillation is {config.distillation:g}, but the task is no classification: "
                    "a teacher gives probabilities of classes"
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
