"""Post-training: bit widths, channels and ranges learned on a few hundred examples, with the weights untouched."""

from bayesbits.posttraining.config import PosttrainConfig
from bayesbits.posttraining.front_points import restore
from bayesbits.posttraining.sweep import posttrain

__all__ = ["PosttrainConfig", "posttrain", "restore"]
