"""The deployed network: a plain module over an `IntegerNetwork` and a graph of torch's own operations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesbits.deploy.modules import (
    DEQUANTIZERS,
    FLOATS,
    LAYERS,
    PRODUCTS,
    QUANTIZERS,
    TABLES,
    Dequantize,
    FloatTensors,
    Quantize,
    make_layer,
    make_product,
    make_table,
)
from bayesbits.deploy.signature import bind, example_call, to_stored_dtype
from bayesbits.graph.symbolic_sizes import mark_sizes
from bayesbits.records.dynamic_size import check_shapes, shapes_in_words
from bayesbits.records.integer_network import IntegerNetwork
from bayesbits.records.topology import RECURRENT
from bayesbits.utils.naming import key_of
from bayesbits.utils.tables import text_table
from bayesbits.utils.torch_private import tree_map, tree_map_only


class DeployedNetwork(nn.Module):
    """A network that computes with final integers; it has no gates, no hooks and nothing to train.

    :func:`deploy` and :func:`load` make it. It is called as the float network is.

    Args:
        integer: The record of the integers that it computes with: codes, steps, biases and grids.
        graph: The graph that runs it. Its nodes are the user's inputs, torch's operations, and modules under
            ``layers``, ``products``, ``tables``, ``quantizers`` and ``dequantizers``; get_attr nodes read ``floats``.
        floats: The tensors that stay in float.

    Attributes:
        integer: The record.
        program: The ``fx.GraphModule`` of the graph.

    Example::

        >>> import torch, bayesbits as bb
        >>> compressor = bb.attach(torch.nn.Linear(4, 2).eval(), torch.ones(1, 4), bb.Spec(bits=(8,)))
        >>> compressor.calibrate([torch.ones(2, 4)])
        >>> compressor.fix()
        >>> small = bb.deploy(compressor)
        >>> small.parameter_count, small.macs
        (10, 8)
        >>> small.integer.layers[0].weight_shape
        (2, 4)
    """

    def __init__(self, integer: IntegerNetwork, graph: fx.Graph, floats: FloatTensors) -> None:
        super().__init__()
        self.integer = integer
        self._plain = False
        grids = [grid for grid in integer.structure.grids if grid.carrier is not None]
        root = nn.Module()
        root.add_module(FLOATS, floats)
        layers = {key_of(layer.name): make_layer(integer, layer) for layer in integer.layers}
        root.add_module(LAYERS, nn.ModuleDict(layers))
        tables = {key_of(table.name): make_table(integer, table) for table in integer.tables}
        root.add_module(TABLES, nn.ModuleDict(tables))
        products = {key_of(product.name): make_product(integer, product) for product in integer.products}
        root.add_module(PRODUCTS, nn.ModuleDict(products))
        root.add_module(QUANTIZERS, nn.ModuleDict({key_of(grid.name): Quantize(grid) for grid in grids}))
        root.add_module(DEQUANTIZERS, nn.ModuleDict({key_of(grid.name): Dequantize(grid) for grid in grids}))
        self.program = fx.GraphModule(root, graph, "DeployedProgram")
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network; it returns what the float network returned, in the same classes of containers."""
        return self.integer.structure.returns.build(self.program(*self.bind(args, kwargs)), plain=self._plain)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, any_shape: bool = False) -> list[Tensor]:
        """The tensors of a call, in the order and the precision in which the graph takes them.

        Raises a ValueError where one has another shape than the network takes, unless `any_shape` is wanted.
        """
        structure = self.integer.structure
        given = bind(structure.takes, args, kwargs)
        if structure.sizes is not None and not any_shape:
            check_shapes(structure.inputs, structure.input_shapes, structure.sizes, given)
        stored = zip(structure.inputs, structure.input_types, strict=True)
        return [to_stored_dtype(tensor, name, dtype) for tensor, (name, dtype) in zip(given, stored, strict=True)]

    @property
    def parameter_count(self) -> int:
        """The number of elements of weights, biases and parameters that stay in float."""
        return self.integer.parameter_count

    @property
    def macs(self) -> int:
        """The number of multiply-accumulates for the inputs that the network was attached with."""
        return self.integer.macs

    def train(self, mode: bool = True) -> DeployedNetwork:
        """Stay in evaluation mode: a deployed network has nothing to train."""
        super().train(False)
        return self

    def export_program(self, example_inputs: tuple[Any, ...] | None = None) -> torch.export.ExportedProgram:
        """Exports the network with ``torch.export``, for ExecuTorch, AOTInductor and other runtimes that start there.

        ``torch.export.save(small.export_program(), "small.pt2")`` writes the file.

        Args:
            example_inputs: Positional inputs; without them zeros in the shapes that the network was attached with.

        Returns:
            A program of torch's own operations alone, for inputs of any size where the network takes them. It returns
            plain tuples, lists and dicts.
        """
        structure = self.integer.structure
        args, kwargs = (example_inputs, {}) if example_inputs else example_call(structure, by_position=True)
        marks = None
        if structure.dynamic_places and not kwargs:  # torch.export takes such marks for positional inputs
            given = bind(structure.takes, args, kwargs)
            dynamic = dict.fromkeys(sorted(structure.dynamic_places), torch.export.Dim.AUTO)
            resized, shapes = mark_sizes(given, dynamic)
            tensors, specs = ({id(x): y for x, y in zip(given, new, strict=True)} for new in (resized, shapes))
            marks = (tree_map(lambda leaf: specs.get(id(leaf)), args),)
            args = tree_map_only(Tensor, lambda x: tensors[id(x)], args)
        self._plain = True  # torch.export knows few classes of containers
        try:
            with torch.no_grad():
                return torch.export.export(self, args, kwargs, dynamic_shapes=marks, strict=False)
        finally:
            self._plain = False

    def __str__(self) -> str:
        header = ("layer", "arithmetic", "weights", "bits", "reads", "emits", "MACs")
        rows = [
            (layer.name, layer.arithmetic, "x".join(map(str, layer.weight_shape)), str(layer.bits))
            + ("dynamic8" if layer.dynamic else self._code_type(layer.input), self._code_type(layer.output))
            + (f"{layer.macs:,}",)
            for layer in self.integer.layers
        ]
        rows += [
            (product.name, product.arithmetic, "", "")
            + (f"{self._code_type(product.left)} x {self._code_type(product.right)}", self._code_type(product.output))
            + (f"{product.macs:,}",)
            for product in self.integer.products
        ]
        for table in self.integer.tables:
            arithmetic, reads = ("float", "float") if table.kind == RECURRENT else ("lookup", "indices")
            shape, bits = f"{table.rows}x{table.columns}", str(table.bits)
            rows.append((table.name, arithmetic, shape, bits, reads, "float", f"{table.macs:,}"))
        counts = f"{self.parameter_count:,} parameters, {self.macs:,} MACs"
        return "\n".join(
            [text_table(header, rows, left=range(len(header))), counts, *self.shapes(), *self.integer.structure.notes]
        )

    def shapes(self) -> list[str]:
        """Lines about the shapes that the network takes: one for each input, and why a size is fixed."""
        structure = self.integer.structure
        lines = shapes_in_words(structure.inputs, structure.input_shapes, structure.sizes or ())
        return [] if structure.sizes is None else [*(f"takes {line}" for line in lines), *structure.fixed_sizes]

    def _code_type(self, name: str | None) -> str:
        """The codes of a tensor in short, such as "u4"; "float" without a grid."""
        if name is None:
            return "float"
        grid = self.integer.grid(name)
        return f"{grid.kind[0]}{grid.bits}"
