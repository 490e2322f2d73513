"""Quantizers are inserted where they were in training: on residual operands, inputs of layers, operands of products."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from bayesbits.deploy.modules import DEQUANTIZERS, QUANTIZERS, target_of
from bayesbits.deploy.rewrite.program import LayerNode, ProductNode, RewrittenProgram
from bayesbits.functional.grid import EDGE, has_grid
from bayesbits.graph.layers import layer_input
from bayesbits.records.integer_network import Grid
from bayesbits.utils.torch_private import OpOverload

aten = torch.ops.aten


def insert_quantizers(program: RewrittenProgram) -> None:
    """Quantize the operands of residual additions, the inputs of layers and the operands of products, in that order."""
    insertion, grids = _QuantizerInsertion(program), program.decision.grids
    for name, twin in program.reading.operands.items():
        if name in grids:
            insertion.quantize_operand(grids[name], twin)
    twins = {found.name: found.calls for found in program.reading.layers}
    for entry in program.layers:
        grid = grids.get(entry.layer.activation)
        if grid is not None:
            for call, twin in zip(entry.calls, twins[entry.layer.name], strict=True):
                insertion.quantize_input(grid, entry, call, layer_input(program.twin, twin))
    for product in program.products:
        insertion.quantize_factors(product, [grids.get(name) for name in (product.product.left, product.product.right)])


class _QuantizerInsertion:
    def __init__(self, program: RewrittenProgram) -> None:
        self.program, self.graph = program, program.graph
        self._twin = program.twins()
        self._codes: dict[tuple[str, fx.Node], fx.Node] = {}
        self._numbers: dict[tuple[str, fx.Node], fx.Node] = {}

    def quantize_operand(self, grid: Grid, twin: fx.Node) -> None:
        """Quantize the output of a module for every reader outside of the module."""
        node = self.program.node_of[twin]
        module = grid.name.removesuffix(".output")
        calls = {call for call, path in self.program.twin.calls(twin) if path == module}
        outside = [user for user in node.users if not self._lies_in(user, calls)]
        if node.graph is self.graph and outside:
            numbers = self._quantized(grid, node, as_codes=False)
            for user in outside:
                user.replace_input_with(node, numbers)
            self.program.node_of[twin] = numbers

    def quantize_input(self, grid: Grid, entry: LayerNode, call: fx.Node, twin: fx.Node) -> None:
        """Quantize the tensor that a layer is called with; between the two there may be the layer's own padding."""
        wanted, reader = self.program.node_of[twin], call
        while reader.args[0] is not wanted:
            source = reader.args[0]
            assert isinstance(source, fx.Node)
            if not source.all_input_nodes:
                break
            reader = source
        source = reader.args[0]
        assert isinstance(source, fx.Node)
        reader.replace_input_with(source, self._quantized(grid, source, as_codes=entry.float_reason is None))

    def quantize_factors(self, entry: ProductNode, grids: Sequence[Grid | None]) -> None:
        """Quantize both operands of a product of two activations, which may be one tensor, each on its own grid."""
        as_codes = entry.float_reason is None
        for call in entry.calls:
            operands = []
            for used, grid in zip(call.args, grids, strict=True):
                assert isinstance(used, fx.Node)
                operands.append(used if grid is None else self._quantized(grid, used, as_codes=as_codes))
            call.args = tuple(operands)

    def _lies_in(self, node: fx.Node, calls: set[str]) -> bool:
        twin = self._twin.get(node)
        return twin is not None and any(call in calls for call, _ in self.program.twin.calls(twin))

    def _quantized(self, grid: Grid, node: fx.Node, *, as_codes: bool) -> fx.Node:
        """A tensor on its grid, as codes or as numbers; each is inserted once."""
        key = (grid.name, node)
        if grid.carrier is None:
            if key not in self._numbers:
                self._numbers[key] = self._insert_rounding(grid, node)
            return self._numbers[key]
        if key not in self._codes:
            self._codes[key] = self._insert_module(node, QUANTIZERS, grid)
        if as_codes:
            return self._codes[key]
        if key not in self._numbers:
            self._numbers[key] = self._insert_module(self._codes[key], DEQUANTIZERS, grid)
        return self._numbers[key]

    def _insert_module(self, node: fx.Node, folder: str, grid: Grid) -> fx.Node:
        with self.graph.inserting_after(node):
            return self.graph.call_module(target_of(folder, grid.name), (node,))

    def _insert_rounding(self, grid: Grid, node: fx.Node) -> fx.Node:
        """Above 16 bits numbers stay numbers: clipped, and rounded where float32 can tell the codes apart."""
        upper = (torch.tensor(grid.beta) * EDGE).item()
        ends = (-upper if grid.signed else 0.0, upper) if grid.alpha is None else (grid.alpha, grid.beta)
        steps: list[tuple[OpOverload, tuple[float, ...]]] = [(aten.clamp.default, ends)]
        if has_grid(grid.bits, torch.float32):
            steps += [(aten.div.Scalar, (grid.step,)), (aten.round.default, ())]
            steps += [] if grid.alpha is None else [(aten.clamp.default, (float(grid.low), float(grid.high)))]
            steps += [(aten.mul.Scalar, (grid.step,))]
        for target, numbers in steps:
            with self.graph.inserting_after(node):
                node = self.graph.call_function(target, (node, *numbers))
        return node
