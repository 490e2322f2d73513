"""Finding the tables of embeddings whose rows can be codes, and why the others stay in float.

A table is a weight that is looked up and never multiplied: it has no MACs, but often most of a network's bytes. Its
codes are gathered as the numbers would be, and multiplied by their step afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from torch import fx, nn

from bayesbits.graph.exported_program import Program, operation, shape
from bayesbits.records.topology import EMBEDDING, Table, Unsupported


@dataclass(frozen=True)
class FoundTable:
    """A table, and the nodes that read it."""

    table: Table
    calls: tuple[fx.Node, ...]
    """The lookups, or the calls of the recurrent layer."""
    weight: fx.Node
    """The parameter."""


def find_tables(
    program: Program, unsupported: Mapping[fx.Node, Unsupported]
) -> tuple[tuple[FoundTable, ...], dict[fx.Node, Unsupported]]:
    """The tables of a network, and what is still not supported, with the reason for every other table."""
    first = {id(parameter): name for name, parameter in program.model.named_parameters()}
    lookups: dict[str, list[fx.Node]] = {}
    for node, entry in unsupported.items():
        if entry.what == EMBEDDING and (weight := node.all_input_nodes[0]) in program.parameters:
            owned = program.model.get_parameter(program.parameters[weight])
            lookups.setdefault(first[id(owned)], []).append(node)
    tables, remaining = [], dict(unsupported)
    for parameter, calls in lookups.items():
        obstacle = _obstacle(program, calls)
        for call in calls:
            del remaining[call]
            if obstacle is not None:
                remaining[call] = replace(
                    unsupported[call], reason=f"a table of weights that stays in float: {obstacle}"
                )
        if obstacle is None:
            modules = tuple(dict.fromkeys(program.path(call) for call in calls))
            weight = calls[0].all_input_nodes[0]
            rows, columns = shape(weight)
            table = Table(modules[0], parameter, rows, columns, modules)
            tables.append(FoundTable(table, tuple(calls), weight))
    return tuple(tables), remaining


def _obstacle(program: Program, calls: Collection[fx.Node]) -> str | None:
    """Why a table cannot be looked up as codes; None where it can."""
    for call in calls:
        module = program.module(call)
        if isinstance(module, nn.Embedding) and module.max_norm is not None:
            return "max_norm changes its rows while it is looked up"
        if operation(call) != EMBEDDING or not isinstance(module, nn.Embedding):
            return f"{operation(call)} is called by code that is not that of nn.Embedding"
        if type(module).forward is not nn.Embedding.forward:
            return f"{type(module).__name__} has a forward of its own"
    weights = {call.all_input_nodes[0] for call in calls}
    for other in {user for weight in parameter_nodes(program, weights) for user in weight.users} - set(calls):
        where = program.path(other)
        return f"{f'{where} ({operation(other)})' if where else operation(other)} reads it, too, and is no lookup"
    return None


def parameter_nodes(program: Program, weights: Collection[fx.Node]) -> list[fx.Node]:
    """All nodes of the parameters that these nodes stand for: a tied parameter may have several."""
    owned = {id(program.model.get_parameter(program.parameters[weight])) for weight in weights}
    return [node for node, name in program.parameters.items() if id(program.model.get_parameter(name)) in owned]
