"""Lookups of tables become module calls, which gather codes."""

from __future__ import annotations

from bayesbits.deploy.modules import TABLES, target_of
from bayesbits.deploy.rewrite.program import RewrittenProgram


def replace_tables(program: RewrittenProgram) -> None:
    """Put the call of a module in place of every lookup of a table that is quantized."""
    for found in program.reading.tables:
        if found.table.name not in program.decision.tables:
            continue
        for twin in found.calls:
            node = program.node_of[twin]
            with program.graph.inserting_before(node):
                call = program.graph.call_module(target_of(TABLES, found.table.name), (node.args[1],))
            call.meta = dict(node.meta)
            node.replace_all_uses_with(call)
            program.node_of[twin] = call
    program.erase_unread()
