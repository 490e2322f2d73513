"""Which operations clip, take maxima or average, and the arguments of an operation by name."""

from __future__ import annotations

import re
from typing import Any

from torch import fx

from bayesbits.utils.torch_private import OpOverload

CLIPS = ("relu", "relu6", "hardtanh", "clamp", "clamp_min")
MAXIMA = re.compile(r"max_pool\dd|amax")
AVERAGES = re.compile(r"(adaptive_)?avg_pool\dd|mean")


def arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operation by name, defaults included."""
    assert isinstance(node.target, OpOverload)
    expected = node.target._schema.arguments
    given = {argument.name: argument.default_value for argument in expected if argument.has_default_value()}
    given |= dict(zip((argument.name for argument in expected), node.args, strict=False))
    return given | dict(node.kwargs)
