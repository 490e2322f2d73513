"""Lookups of tables, and the weights of recurrent layers, become module calls, which read codes."""

from __future__ import annotations

from bayesbits.deploy.modules import TABLES, target_of
from bayesbits.deploy.rewrite.program import RewrittenProgram
from bayesbits.graph.tables import FoundTable
from bayesbits.records.topology import RECURRENT


def replace_tables(program: RewrittenProgram) -> None:
    """Put the call of a module in place of every lookup, and of every weight of a recurrent layer, with codes."""
    for found in program.reading.tables:
        if found.table.name not in program.decision.tables:
            continue
        if found.table.kind == RECURRENT:
            _replace_weight(program, found)
        else:
            _replace_lookups(program, found)
    program.erase_unread()


def _replace_weight(program: RewrittenProgram, found: FoundTable) -> None:
    """One call, which every call of the recurrent layer reads; nothing else reads the weight."""
    weight = program.node_of[found.weight]
    with program.graph.inserting_before(program.node_of[found.calls[0]]):
        numbers = program.graph.call_module(target_of(TABLES, found.table.name), ())
    numbers.meta = dict(weight.meta)
    weight.replace_all_uses_with(numbers)
    program.node_of[found.weight] = numbers


def _replace_lookups(program: RewrittenProgram, found: FoundTable) -> None:
    for twin in found.calls:
        node = program.node_of[twin]
        with program.graph.inserting_before(node):
            call = program.graph.call_module(target_of(TABLES, found.table.name), (node.args[1],))
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        program.node_of[twin] = call
