"""Which operations clip, take maxima, average or interpolate, and which ones a quantizer can change places with.

Rounding to a grid is monotone and keeps zero. So it can change places with a maximum, with clipping between bounds that
include zero, with padding by zeros, and with every operation that only moves data.
"""

from __future__ import annotations

import re

import torch
from torch import fx

from bayesbits.graph.channel_rules import MOVES, PADS, SAME
from bayesbits.graph.exported_program import arguments, operation

CLIPS = ("relu", "relu6", "hardtanh", "clamp", "clamp_min")
SPLITS = ("split", "split_with_sizes", "chunk", "unbind")
"""Operations that give several tensors, each a part of one."""
MAXIMA = re.compile(r"max_pool\dd|amax")
AVERAGES = re.compile(r"(adaptive_)?avg_pool\dd|mean")
INTERPOLATIONS = re.compile(r"upsample_[a-z_]+\dd")


def clip_bounds(node: fx.Node) -> tuple[float, float] | None:
    """The bounds between which one of `CLIPS` clips; None where they exclude zero, or where they are computed."""
    name = operation(node)
    if name in ("relu", "relu6"):
        return 0.0, torch.inf if name == "relu" else 6.0
    given = arguments(node)
    low, high = (given.get(f"{word}_val" if name == "hardtanh" else word) for word in ("min", "max"))
    low, high = -torch.inf if low is None else low, torch.inf if high is None else high
    if isinstance(low, fx.Node) or isinstance(high, fx.Node) or not low <= 0 <= high:
        return None
    return float(low), float(high)


def moves_values(node: fx.Node) -> bool:
    """Whether an operation only moves the data of one tensor, pads it with zeros, or takes maxima of it."""
    name = operation(node)
    # index_select is how channels were removed or restored; its positions are read by a get_attr node.
    moves = name in MOVES or name in SAME or MAXIMA.fullmatch(name) or pads_zeros(node) or name == "index_select"
    if not moves or not isinstance(node.meta.get("val", torch.empty(0)), torch.Tensor):
        return False
    sources = [used for used in node.all_input_nodes if used.op != "get_attr" and operation(used) != "sym_size"]
    return len(sources) == 1


def moved_tensor(node: fx.Node) -> fx.Node | None:
    """The tensor that an operation moves the data of, or a part of them; None for other operations."""
    if operation(node) == "getitem":
        parts = node.all_input_nodes[0]
        return parts.all_input_nodes[0] if operation(parts) in SPLITS else None
    return node.all_input_nodes[0] if node.op == "call_function" and moves_values(node) else None


def pads_zeros(node: fx.Node) -> bool:
    """Whether an operation pads one tensor with zeros."""
    name, rest = operation(node), [*node.args[2:], *node.kwargs.values()]
    return (name in PADS and not any(rest)) or (name == "pad" and rest[:1] == ["constant"] and not any(rest[1:]))
