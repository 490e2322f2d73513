"""Training: the search for bits and channels, and the fine-tuning after it."""

from bayesbits.training.config import FinetuneConfig, OptimizerConfig, SearchConfig
from bayesbits.training.device_loader import DeviceLoader
from bayesbits.training.errors import CheckpointError, Interrupted, LoaderError, NonFiniteError, TrainingError
from bayesbits.training.loop import finetune, search

__all__ = [
    "CheckpointError",
    "DeviceLoader",
    "FinetuneConfig",
    "Interrupted",
    "LoaderError",
    "NonFiniteError",
    "OptimizerConfig",
    "SearchConfig",
    "TrainingError",
    "finetune",
    "search",
]
