"""Which operations clip, take maxima or average, and the arguments of an operation by name."""

from __future__ import annotations

import re

from bayesbits.graph.exported_program import arguments

__all__ = ["AVERAGES", "CLIPS", "MAXIMA", "arguments"]

CLIPS = ("relu", "relu6", "hardtanh", "clamp", "clamp_min")
MAXIMA = re.compile(r"max_pool\dd|amax")
AVERAGES = re.compile(r"(adaptive_)?avg_pool\dd|mean")
