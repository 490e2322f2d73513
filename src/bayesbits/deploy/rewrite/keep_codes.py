"""Tensors that are only moved between quantizers of one grid stay codes: splits, shuffled channels, concatenations.

A quantizer moves upstream through an operation with one reader (see `fuse_quantizers`). Where a tensor is split, and
one half is rounded by the next layer while the other is concatenated with what that layer makes, no quantizer can pass.
But if all of them have one grid, nothing is rounded anywhere: numbers are multiples of one step from the first
quantizer to the last, and the codes take the whole way. A clipping function that changes no number of a grid, such as a
ReLU behind an unsigned quantizer, is removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx

from bayesbits.deploy.modules import DEQUANTIZERS, QUANTIZERS, target_of
from bayesbits.deploy.rewrite.program import RewrittenProgram
from bayesbits.graph.exported_program import operation
from bayesbits.graph.operations import CLIPS, SPLITS, clip_bounds, moved_tensor
from bayesbits.records.integer_network import Grid

Grids = Mapping[Any, Grid]
"""Grids by the target of the node that calls their module."""


def keep_codes(program: RewrittenProgram) -> None:
    """Let operations that only move numbers of one grid, for quantizers of this grid, move the codes instead."""
    grids = {name: grid for name, grid in program.decision.grids.items() if grid.carrier == "uint8"}
    dequantizers = {target_of(DEQUANTIZERS, name): grid for name, grid in grids.items()}
    quantizers = {target_of(QUANTIZERS, name): grid for name, grid in grids.items()}
    for node in program.graph.nodes:
        if operation(node) in CLIPS and _changes_nothing(node, dequantizers):
            node.replace_all_uses_with(node.all_input_nodes[0])
    program.erase_unread()
    for node in _moved_codes(program.graph, dequantizers, quantizers):
        for source in node.all_input_nodes:
            if source.target in dequantizers:
                node.replace_input_with(source, source.all_input_nodes[0])
        for reader in [reader for reader in node.users if reader.target in quantizers]:
            reader.replace_all_uses_with(node)
    program.erase_unread()


def _moved_codes(graph: fx.Graph, dequantizers: Grids, quantizers: Grids) -> dict[fx.Node, Grid]:
    """The operations that can move codes, with the grid of each, in running order.

    All that they read is on one grid, and all that reads them moves it on, or rounds it to that grid. What is found in
    running order by the first rule is thinned by the second, until both hold.
    """
    left = {node for node in graph.nodes if node.op == "call_function"}
    while True:
        found: dict[fx.Node, Grid] = {}
        for node in graph.nodes:
            if node in left and (grid := _common_grid(node, found, dequantizers)) is not None:
                found[node] = grid
        kept = {
            node
            for node, grid in found.items()
            if all(_takes_codes(reader, grid, found, quantizers) for reader in node.users)
        }
        if kept == left:
            return found
        left = kept


def _common_grid(node: fx.Node, found: Mapping[fx.Node, Grid], dequantizers: Grids) -> Grid | None:
    """The grid of all numbers that a moving operation reads; None where there are several, or for other operations."""
    grids = [found.get(source) or dequantizers.get(source.target) for source in _sources(node)]
    first = grids[0] if grids else None
    equal = first is not None and all(grid is not None and grid.same_codes(first) for grid in grids)
    return first if equal else None


def _sources(node: fx.Node) -> Iterator[fx.Node]:
    """The tensors that an operation moves; none for other operations."""
    if operation(node) == "cat":
        parts: Any = node.args[0]
        yield from parts
    elif operation(node) in SPLITS or moved_tensor(node) is not None:
        yield node.all_input_nodes[0]


def _takes_codes(reader: fx.Node, grid: Grid, found: Mapping[fx.Node, Grid], quantizers: Grids) -> bool:
    if reader in found:
        return True
    own = quantizers.get(reader.target)
    return own is not None and own.same_codes(grid)


def _changes_nothing(clip: fx.Node, dequantizers: Grids) -> bool:
    """Whether a clipping function reads the numbers of a grid, all of which lie between its bounds."""
    bounds, grid = clip_bounds(clip), dequantizers.get(clip.all_input_nodes[0].target)
    if bounds is None or grid is None:
        return False
    numbers = torch.tensor([grid.low, grid.high]) * torch.tensor(grid.step)
    return bool((bounds[0] <= numbers).all() and (numbers <= bounds[1]).all())
