"""Branches of residual additions that emit only zeros are removed.

A layer without bits emits zeros, and so does the instance norm that has its gate. An addition of zeros is its other
operand; what only the zeros needed is erased.
"""

from __future__ import annotations

from torch import fx

from bayesbits.deploy.rewrite.program import RewrittenProgram
from bayesbits.graph.channel_rules import MOVES, SAME
from bayesbits.graph.exported_program import operation, shape
from bayesbits.graph.layer_norms import INSTANCE_NORM
from bayesbits.graph.operations import AVERAGES, MAXIMA


def remove_dead_branches(program: RewrittenProgram) -> None:
    """Replace additions of zeros by their other operand, and remove the layers that nothing reads any more.

    A layer of zeros that something else reads stays, with a weight of zeros.
    """
    zeros = {call for entry in program.layers for call in entry.calls if program.decision.is_zero(entry.layer.name)}
    twins = program.twins()
    zeros |= {norm for norm in _gated_norms(program) if norm.args[0] in zeros}
    for node in list(program.graph.nodes):
        if zeros.isdisjoint(node.all_input_nodes) or node.op != "call_function":
            continue
        name = operation(node)
        if name == "add" and len(node.all_input_nodes) == 2 and not node.kwargs:
            others = [used for used in node.all_input_nodes if used not in zeros]
            if not others:
                zeros.add(node)
            elif shape(twins[others[0]]) == shape(twins[node]):
                _replace(program, node, others[0])
        elif len(node.all_input_nodes) == 1 and _keeps_zero(name):
            zeros.add(node)
    program.erase_unread()
    present = set(program.graph.nodes)
    program.layers = [entry for entry in program.layers if present.issuperset(entry.calls)]


def _gated_norms(program: RewrittenProgram) -> set[fx.Node]:
    """The instance norms with the gates of the layers in front of them: they have no shift where those emit zeros."""
    layers = [entry for entry in program.layers if entry.layer.instance_norm is not None]
    return {user for entry in layers for call in entry.calls for user in call.users if operation(user) == INSTANCE_NORM}


def _keeps_zero(name: str) -> bool:
    """Whether an operation of one tensor makes zeros of zeros."""
    return name in (*MOVES, *SAME, "relu") or bool(MAXIMA.fullmatch(name) or AVERAGES.fullmatch(name))


def _replace(program: RewrittenProgram, node: fx.Node, other: fx.Node) -> None:
    node.replace_all_uses_with(other)
    for twin, computed in program.node_of.items():
        if computed is node:
            program.node_of[twin] = other
