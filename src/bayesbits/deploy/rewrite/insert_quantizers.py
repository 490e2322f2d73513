"""Quantizers put into the float graph where they were trained to be."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import fx

from bayesbits.deploy.rewrite.fold_batch_norm import LayerNode
from bayesbits.deploy.rewrite.program import FloatProgram
from bayesbits.functional.grid import EDGE, has_grid
from bayesbits.graph.layers import layer_input
from bayesbits.records.integer_network import Grid
from bayesbits.utils.naming import key_of
from bayesbits.utils.torch_private import OpOverload

aten = torch.ops.aten
QUANTIZERS, DEQUANTIZERS = "quantizers", "dequantizers"


def place(
    program: FloatProgram, layers: list[LayerNode], grids: Mapping[str, Grid], integer_layers: Collection[str]
) -> None:
    """Quantize the operands of residual additions and the inputs of layers, in that order."""
    placing = _Placing(program, integer_layers)
    for name, twin in program.reading.operands.items():
        if name in grids:
            placing.operand(grids[name], twin)
    twins = {found.name: found.calls for found in program.reading.layers}
    for entry in layers:
        grid = grids.get(entry.layer.activation)
        if grid is not None:
            for call, twin in zip(entry.calls, twins[entry.layer.name], strict=True):
                placing.layer_input(grid, entry, call, layer_input(program.program, twin))


class _Placing:
    def __init__(self, program: FloatProgram, integer_layers: Collection[str]) -> None:
        self.program, self.graph = program, program.graph
        self.integer_layers = integer_layers
        self._twin = {node: twin for twin, node in program.node_of.items()}
        self._codes: dict[tuple[str, fx.Node], fx.Node] = {}
        self._numbers: dict[tuple[str, fx.Node], fx.Node] = {}

    def operand(self, grid: Grid, twin: fx.Node) -> None:
        """Quantize what a module returns, for everything outside of it."""
        node = self.program.node_of[twin]
        module = grid.name.removesuffix(".output")
        calls = {call for call, path in self.program.program.calls(twin) if path == module}
        outside = [user for user in node.users if not self._lies_in(user, calls)]
        if node.graph is self.graph and outside:
            numbers = self._quantized(grid, node, as_codes=False)
            for user in outside:
                user.replace_input_with(node, numbers)
            self.program.node_of[twin] = numbers

    def layer_input(self, grid: Grid, entry: LayerNode, call: fx.Node, twin: fx.Node) -> None:
        """Quantize the tensor that a layer is called with; between the two there may be its own padding."""
        as_codes = entry.layer.name in self.integer_layers
        wanted, reader = self.program.node_of[twin], call
        while reader.args[0] is not wanted:
            source = reader.args[0]
            assert isinstance(source, fx.Node)
            if not source.all_input_nodes:
                break
            reader = source
        source = reader.args[0]
        assert isinstance(source, fx.Node)
        reader.replace_input_with(source, self._quantized(grid, source, as_codes=as_codes))

    def _lies_in(self, node: fx.Node, calls: set[str]) -> bool:
        twin = self._twin.get(node)
        return twin is not None and any(call in calls for call, _ in self.program.program.calls(twin))

    def _quantized(self, grid: Grid, node: fx.Node, *, as_codes: bool) -> fx.Node:
        """A tensor on its grid, as codes or as numbers."""
        place = (grid.name, node)
        if grid.carrier is None:
            if place not in self._numbers:
                self._numbers[place] = self._rounded(grid, node)
            return self._numbers[place]
        if place not in self._codes:
            self._codes[place] = self._behind(node, QUANTIZERS, grid)
        if as_codes:
            return self._codes[place]
        if place not in self._numbers:
            self._numbers[place] = self._behind(self._codes[place], DEQUANTIZERS, grid)
        return self._numbers[place]

    def _behind(self, node: fx.Node, room: str, grid: Grid) -> fx.Node:
        with self.graph.inserting_after(node):
            return self.graph.call_module(f"{room}.{key_of(grid.name)}", (node,))

    def _rounded(self, grid: Grid, node: fx.Node) -> fx.Node:
        """Above 16 bits numbers stay numbers: clipped, and rounded where float32 can tell the codes apart."""
        upper = (torch.tensor(grid.beta) * EDGE).item()
        steps: list[tuple[OpOverload, tuple[float, ...]]] = [
            (aten.clamp.default, (-upper if grid.signed else 0.0, upper))
        ]
        if has_grid(grid.bits, torch.float32):
            steps += [(aten.div.Scalar, (grid.step,)), (aten.round.default, ()), (aten.mul.Scalar, (grid.step,))]
        for target, numbers in steps:
            with self.graph.inserting_after(node):
                node = self.graph.call_function(target, (node, *numbers))
        return node
