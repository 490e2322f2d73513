"""Training: the search for bits and channels, and the fine-tuning after it."""

from bayesbits.training.config import FinetuneConfig, OptimizerConfig, SearchConfig

__all__ = ["FinetuneConfig", "OptimizerConfig", "SearchConfig"]
