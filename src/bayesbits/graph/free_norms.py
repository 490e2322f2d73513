"""Finding the batch norms that are folded into no layer, and the quantized tensors that their channels are made of.

Between a quantizer and such a batch norm there may be operations behind which a constant channel is still off by what
rounding did to it: clipping, maxima, padding, additions, and concatenations. Averages are not among them, as rounding
errors of channels that are no constants average out there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import groupby
from typing import Any

from torch import Tensor, fx, nn

from bayesbits.graph.channel_rules import SAME
from bayesbits.graph.exported_program import Program, operation, shape
from bayesbits.graph.layer_norms import BATCH_NORMS
from bayesbits.graph.operations import CLIPS, MAXIMA, pads_zeros
from bayesbits.records.topology import FreeNorm, NormInput

Made = list[frozenset[str]]
"""For every channel of a tensor the names of the quantized tensors that it is made of; none for other channels."""


def find_free_norms(program: Program, own: Collection[str], quantized: Mapping[str, fx.Node]) -> tuple[FreeNorm, ...]:
    """The batch norms that are folded into no layer and read quantized tensors.

    Args:
        program: The network.
        own: The batch norms that are folded into layers.
        quantized: The nodes of the tensors that can be quantized, by name.
    """
    norms = {node: program.path(node) for node in program.nodes if _is_free_norm(program, node, own)}
    made: dict[fx.Node, Made] = {}
    names = {node: name for name, node in quantized.items()}
    for node in program.nodes if norms else ():
        value = node.meta.get("val")
        if isinstance(value, Tensor) and value.dim() > 1:
            made[node] = _made_of(node, names, made)
    found = []
    for node, name in norms.items():
        channels = made[node.all_input_nodes[0]]
        runs = tuple(NormInput(tuple(sorted(tensors)), len([*run])) for tensors, run in groupby(channels))
        if any(run.tensors for run in runs):
            found.append(FreeNorm(name, runs))
    return tuple(found)


def _is_free_norm(program: Program, node: fx.Node, own: Collection[str]) -> bool:
    """Whether a node is the only call of a batch norm of torch that has a scale and statistics, and no layer."""
    if operation(node) not in BATCH_NORMS:
        return False
    module, path = program.module(node), program.path(node)
    if type(module) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d) or path in own:
        return False
    return module.weight is not None and module.running_var is not None and program.calls_of[path] == 1


def _made_of(node: fx.Node, names: Mapping[fx.Node, str], made: Mapping[fx.Node, Made]) -> Made:
    """What every channel of a node is made of."""
    size, rank, name = shape(node)[1], len(shape(node)), operation(node)
    if node in names:
        return [frozenset([names[node]])] * size
    if name == "cat":
        joined: Any = node.args[0]
        dim: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        return [each for used in joined for each in made.get(used, [])] if dim % rank == 1 else [frozenset()] * size
    passes = name in CLIPS or name in SAME or name == "add" or MAXIMA.fullmatch(name) or pads_zeros(node)
    parts = [made[used] for used in node.all_input_nodes if used in made and len(shape(used)) == rank] if passes else []
    parts = [part for part in parts if len(part) == size]
    return [frozenset[str]().union(*channel) for channel in zip(*parts, strict=True)] or [frozenset()] * size
