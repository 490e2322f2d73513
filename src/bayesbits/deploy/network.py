"""The deployed network: a plain module over an `IntegerNetwork` and a graph of torch's own operations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesbits.deploy.modules import Dequantize, Quantize, make_layer
from bayesbits.deploy.rewrite.program import Floats
from bayesbits.deploy.signature import as_stored, bind, example_call
from bayesbits.records.integer_network import IntegerNetwork
from bayesbits.utils.naming import key_of
from bayesbits.utils.torch_private import tree_map, tree_map_only


class DeployedNetwork(nn.Module):
    """A network that computes with final integers: no gates, no hooks, nothing to train.

    `integer` is the record of what it computes with. `program` runs it: an fx.GraphModule whose nodes are the user's
    inputs, torch's operations, and modules under `layers`, `quantizers` and `dequantizers`; what stays in float lies in
    `floats`.
    """

    def __init__(self, integer: IntegerNetwork, graph: fx.Graph, floats: Floats) -> None:
        super().__init__()
        self.integer = integer
        root = nn.Module()
        root.floats = floats
        root.layers = nn.ModuleDict({key_of(layer.name): make_layer(integer, layer) for layer in integer.layers})
        grids = [grid for grid in integer.structure.grids if grid.carrier is not None]
        root.quantizers = nn.ModuleDict({key_of(grid.name): Quantize(grid) for grid in grids})
        root.dequantizers = nn.ModuleDict({key_of(grid.name): Dequantize(grid) for grid in grids})
        self.program = fx.GraphModule(root, graph, "DeployedProgram")
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the network returns, in the same containers; other objects come as dicts of their attributes."""
        return self.integer.structure.returns.build(self.program(*self.bind(args, kwargs)))

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The tensors in the order of the graph, and in its precision, from what the network itself is called with."""
        structure = self.integer.structure
        given = bind(structure.takes, args, kwargs)
        stored = zip(structure.inputs, structure.input_types, strict=True)
        return [as_stored(tensor, name, kind) for tensor, (name, kind) in zip(given, stored, strict=True)]

    @property
    def parameter_count(self) -> int:
        """The elements of weights and biases, and of whatever else stays in float."""
        return self.integer.parameter_count

    @property
    def macs(self) -> int:
        """The multiply-accumulates for the inputs that the network was attached with."""
        return self.integer.macs

    def train(self, mode: bool = True) -> DeployedNetwork:
        """A deployed network has nothing to train, and stays in evaluation mode."""
        super().train(False)
        return self

    def export_program(self, example_inputs: tuple[Any, ...] | None = None) -> torch.export.ExportedProgram:
        """The network as a torch.export program of plain operations, where ExecuTorch and AOTInductor start.

        `torch.export.save(small.export_program(), "small.pt2")` writes the file.
        """
        structure = self.integer.structure
        args, kwargs = (example_inputs, {}) if example_inputs else example_call(structure, by_position=True)
        marks = None
        if structure.dynamic_batch and not kwargs:  # torch lets no sizes of keyword inputs be any here
            inputs = zip(bind(structure.takes, args, kwargs), structure.batched, strict=True)
            any_batch = {id(tensor) for tensor, batched in inputs if batched}
            marks = (tree_map(lambda leaf: {0: torch.export.Dim.AUTO} if id(leaf) in any_batch else None, args),)
            args = tree_map_only(Tensor, lambda x: torch.cat([x, x]) if id(x) in any_batch and len(x) == 1 else x, args)
        with torch.no_grad():
            return torch.export.export(self, args, kwargs, dynamic_shapes=marks, strict=False)

    def __str__(self) -> str:
        head = ("layer", "arithmetic", "weights", "bits", "reads", "emits", "MACs")
        rows = [
            (layer.name, layer.arithmetic, "x".join(map(str, layer.weight_shape)), str(layer.bits))
            + (self._tensor(layer.input), self._tensor(layer.output), f"{layer.macs:,}")
            for layer in self.integer.layers
        ]
        columns = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(size) for cell, size in zip(row, columns, strict=True)).rstrip()
            for row in (head, *rows)
        ]
        lines.append(f"{self.parameter_count:,} parameters, {self.macs:,} MACs")
        return "\n".join([*lines, *self.integer.notes])

    def _tensor(self, name: str | None) -> str:
        if name is None:
            return "float"
        grid = self.integer.grid(name)
        return f"{'s' if grid.signed else 'u'}{grid.bits}"
