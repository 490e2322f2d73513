"""The deployed network: a plain module over an `IntegerNetwork` and a graph of torch's own operations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesbits.deploy.modules import Dequantize, Quantize, make_layer
from bayesbits.deploy.program import Floats, key
from bayesbits.integer import IntegerNetwork


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
        root.layers = nn.ModuleDict({key(layer.name): make_layer(integer, layer) for layer in integer.layers})
        grids = [grid for grid in integer.structure.grids if grid.carrier is not None]
        root.quantizers = nn.ModuleDict({key(grid.name): Quantize(grid) for grid in grids})
        root.dequantizers = nn.ModuleDict({key(grid.name): Dequantize(grid) for grid in grids})
        self.program = fx.GraphModule(root, graph, "DeployedProgram")
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs: tuple[Tensor, ...] = self.program(*self.bind(args, kwargs))
        keys = self.integer.structure.outputs
        if keys == ("",):
            return outputs[0]
        return outputs if keys == tuple(map(str, range(len(keys)))) else dict(zip(keys, outputs, strict=True))

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The inputs in the order of the graph, from positional and keyword inputs."""
        names = self.integer.structure.inputs
        given = dict(zip(names, args, strict=False)) | kwargs
        if len(args) > len(names) or len(given) != len(args) + len(kwargs) or set(given) != set(names):
            found = [f"{len(args)} positional", *kwargs]
            raise TypeError(f"the network takes the inputs {', '.join(names)}, and was given: {', '.join(found)}")
        return [given[name] for name in names]

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
        examples = example_inputs or tuple(
            torch.zeros(_several(shape, structure.dynamic_batch), dtype=getattr(torch, dtype))
            for shape, dtype in zip(structure.input_shapes, structure.input_types, strict=True)
        )
        shapes = None
        if structure.dynamic_batch:
            batch = structure.input_shapes[0][0]
            dynamic = {0: torch.export.Dim.AUTO}
            shapes = (tuple(dynamic if size[:1] == (batch,) else None for size in structure.input_shapes),)
        with torch.no_grad():
            return torch.export.export(self, examples, dynamic_shapes=shapes, strict=False)

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


def _several(shape: tuple[int, ...], dynamic: bool) -> tuple[int, ...]:
    """A shape with a batch of at least two: torch.export takes a size of one for a constant."""
    return (max(2, shape[0]), *shape[1:]) if dynamic and shape else shape
