"""Quantizers moved into the layers in front of them, so that a layer emits codes.

Rounding to a grid is monotone: it can change places with a maximum, with clipping and with everything that only moves
data. So a quantizer behind `layer -> ReLU -> max-pool -> flatten` goes in front of all three; max-pool and flatten then
work on codes, the ReLU becomes a bound of the codes, and the layer requantizes its sums itself. Averages of codes are
exact sums, in whatever order they are added: so numbers that are only averaged are averaged as codes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from bayesbits.deploy.rewrite.fold_batch_norm import LayerNode, remove_dead
from bayesbits.deploy.rewrite.insert_quantizers import DEQUANTIZERS, QUANTIZERS
from bayesbits.deploy.rewrite.program import arguments
from bayesbits.graph.channel_rules import MOVES, PADS, SAME
from bayesbits.graph.exported_program import operation
from bayesbits.records.integer_network import Grid
from bayesbits.utils.naming import key_of

MAXIMA = re.compile(r"max_pool\dd|amax")
AVERAGES = re.compile(r"(adaptive_)?avg_pool\dd|mean")
CLIPS = ("relu", "relu6", "hardtanh", "clamp", "clamp_min")


@dataclass(frozen=True)
class Emission:
    """What codes a layer emits: of which grid, and between which bounds."""

    grid: str
    low: int
    high: int


def fuse(
    graph: fx.Graph, layers: list[LayerNode], grids: Mapping[str, Grid], integer_layers: Collection[str]
) -> dict[str, Emission]:
    """Move quantizers into layers; returns what the layers emit that emit codes."""
    by_target = {
        f"{QUANTIZERS}.{key_of(name)}": grid for name, grid in grids.items() if grid.carrier == "uint8"
    }  # integer kernels emit no wider codes
    free = {
        entry.calls[0]: entry.layer.name
        for entry in layers
        if entry.layer.name in integer_layers and len(entry.calls) == 1
    }
    emissions: dict[str, Emission] = {}
    for node in list(graph.nodes):
        if node.op == "call_module" and node.target in by_target:
            grid = by_target[node.target]
            found: dict[fx.Node, Emission] = {}
            clips: list[fx.Node] = []
            if _climb(node.args[0], Emission(grid.name, grid.low, grid.high), grid, free, found, clips):
                for clip in (*clips, node):
                    clip.replace_all_uses_with(clip.all_input_nodes[0])
                emissions |= {free.pop(layer): emission for layer, emission in found.items()}
    _average_codes(graph)
    remove_dead(graph)
    return emissions


def _climb(
    node: Any, emission: Emission, grid: Grid, free: Mapping[fx.Node, str],
    found: dict[fx.Node, Emission], clips: list[fx.Node],
) -> bool:  # fmt: skip
    """Go up from a quantizer to the layers that feed it; False where something in between does not let it pass."""
    assert isinstance(node, fx.Node)
    if len(node.users) != 1:
        return False
    if node in free:
        found[node] = emission
        return True
    if node.op != "call_function":
        return False
    name = operation(node)
    if name in CLIPS:
        bounds = _bounds(node, name)
        if bounds is None:
            return False
        clips.append(node)
        low, high = (min(max(code, emission.low), emission.high) for code in _codes(bounds, grid))
        return _climb(node.args[0], Emission(grid.name, low, high), grid, free, found, clips)
    if name == "cat":
        parts: Any = node.args[0]
        return all(_climb(part, emission, grid, free, found, clips) for part in parts)
    moves = name in MOVES or name in SAME or MAXIMA.fullmatch(name) or _pads_zeros(node, name)
    # A cut or a repair of channels reads its positions as well.
    moves = moves or name == "index_select"
    if not moves or not isinstance(node.meta.get("val", torch.empty(0)), torch.Tensor):
        return False
    if sum(source.op != "get_attr" and operation(source) != "sym_size" for source in node.all_input_nodes) != 1:
        return False
    return _climb(node.args[0], emission, grid, free, found, clips)


def _pads_zeros(node: fx.Node, name: str) -> bool:
    rest = [*node.args[2:], *node.kwargs.values()]
    return (name in PADS and not any(rest)) or (name == "pad" and rest[:1] == ["constant"] and not any(rest[1:]))


def _bounds(node: fx.Node, name: str) -> tuple[float, float] | None:
    """Between which numbers an operation clips; None where zero is not among them, or where they are computed."""
    if name in ("relu", "relu6"):
        return 0.0, torch.inf if name == "relu" else 6.0
    given = arguments(node)
    low, high = (given.get(f"{word}_val" if name == "hardtanh" else word) for word in ("min", "max"))
    low, high = -torch.inf if low is None else low, torch.inf if high is None else high
    if isinstance(low, fx.Node) or isinstance(high, fx.Node) or not low <= 0 <= high:
        return None
    return float(low), float(high)


def _codes(bounds: tuple[float, float], grid: Grid) -> tuple[int, int]:
    """The codes of two numbers, which may be infinite."""
    codes = torch.round(torch.tensor(bounds) / torch.tensor(grid.step)).clamp(grid.low, grid.high)
    return int(codes[0]), int(codes[1])


def _average_codes(graph: fx.Graph) -> None:
    """Put averages in front of the dequantization of what they average."""
    for node in list(graph.nodes):
        if node.op != "call_module" or not str(node.target).startswith(f"{DEQUANTIZERS}."):
            continue
        for user in list(node.users):
            if user.op == "call_function" and AVERAGES.fullmatch(operation(user)):
                with graph.inserting_after(user):
                    numbers = graph.call_module(str(node.target), (user,))
                user.replace_all_uses_with(numbers, delete_user_cb=lambda reader, own=numbers: reader is not own)
                user.replace_input_with(node, node.args[0])
