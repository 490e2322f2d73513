"""Layers that emit nothing any more, beside a residual way round: their whole branch goes."""

from __future__ import annotations

from collections.abc import Collection

from torch import fx

from bayesbits.deploy.rewrite.fold_batch_norm import LayerNode, remove_dead
from bayesbits.deploy.rewrite.fuse_quantizers import AVERAGES, CLIPS, MAXIMA
from bayesbits.deploy.rewrite.program import FloatProgram
from bayesbits.graph.channel_rules import MOVES, SAME
from bayesbits.graph.exported_program import operation, shape


def drop_silent(program: FloatProgram, layers: list[LayerNode], silent: Collection[str]) -> list[LayerNode]:
    """Let additions read only their other side, where one is zero; returns the layers that are left.

    A silent layer whose zeros go elsewhere stays, with a weight of zeros.
    """
    zeros = {call for entry in layers for call in entry.calls if entry.layer.name in silent}
    twin = {node: twin for twin, node in program.node_of.items()}
    for node in list(program.graph.nodes):
        if zeros.isdisjoint(node.all_input_nodes) or node.op != "call_function":
            continue
        name = operation(node)
        if name == "add" and len(node.all_input_nodes) == 2 and not node.kwargs:
            others = [used for used in node.all_input_nodes if used not in zeros]
            if not others:
                zeros.add(node)
            elif shape(twin[others[0]]) == shape(twin[node]):
                _stand_in(program, node, others[0])
        elif len(node.all_input_nodes) == 1 and _keeps_zero(name):
            zeros.add(node)
    remove_dead(program.graph)
    present = set(program.graph.nodes)
    return [entry for entry in layers if present.issuperset(entry.calls)]


def _keeps_zero(name: str) -> bool:
    return name in (*MOVES, *SAME) or name == CLIPS[0] or bool(MAXIMA.fullmatch(name) or AVERAGES.fullmatch(name))


def _stand_in(program: FloatProgram, node: fx.Node, other: fx.Node) -> None:
    node.replace_all_uses_with(other)
    for key, value in program.node_of.items():
        if value is node:
            program.node_of[key] = other
