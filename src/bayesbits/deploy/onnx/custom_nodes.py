"""Step 1 of the export: torch translates the deployed network, with one custom node for each layer and quantizer.

torch's own exporter translates the float operations (softmax, normalization, attention). Every layer, quantizer and
dequantizer becomes one node of the domain "bayesbits" that only names it; step 2 (`replace_custom_nodes`) puts standard
nodes in its place. The tensors between them hold codes in one of two forms:

- uint8 codes, as onnxruntime's integer kernels read them: code plus zero point of the grid;
- float codes, as the deployed network has them: whole numbers in float32, centered at zero.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from bayesbits.deploy.modules import LAYERS, PRODUCTS, QUANTIZERS, TABLES
from bayesbits.deploy.onnx.prepare_graph import prepare_graph
from bayesbits.graph.channel_rules import MOVES, PADS, SAME
from bayesbits.graph.exported_program import operation
from bayesbits.graph.symbolic_sizes import mark_sizes
from bayesbits.records.integer_network import Grid, IntegerLayer, IntegerNetwork, IntegerProduct, IntegerTable
from bayesbits.records.topology import RECURRENT
from bayesbits.utils.naming import name_of
from bayesbits.utils.torch_private import keep_onnx_translations

if TYPE_CHECKING:
    from onnx import ModelProto

DOMAIN = "bayesbits"
OPSET, IR_VERSION = 21, 10
STACK_TRACE = "pkg.torch.onnx.stack_trace"

Interpreter = Callable[[fx.GraphModule, IntegerNetwork], fx.Interpreter]

_SELECTIONS = re.compile(r"cat|index_select|getitem|amax|max_pool\dd")


class CustomNodeInterpreter(fx.Interpreter):
    """Runs a deployed program with custom nodes in place of its layers and quantizers, and with uint8 codes."""

    def __init__(self, program: fx.GraphModule, network: IntegerNetwork) -> None:
        super().__init__(program)
        self.network = network
        self._uint8: dict[fx.Node, Grid] = {}
        """The nodes whose values are uint8 codes, with their grids."""

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "call_module":
            return self._custom(n)
        if n.op != "call_function" or not any(used in self._uint8 for used in n.all_input_nodes):
            return super().run_node(n)
        tensors = [used for used in n.all_input_nodes if isinstance(self.env[used], Tensor | list | tuple)]
        if _moves(n) and tensors[0] in self._uint8 and not _mixed([used in self._uint8 for used in tensors], n):
            grid = self._uint8[n] = self._uint8[tensors[0]]
            return self._move(n, grid)
        assert callable(n.target)
        args, kwargs = fx.node.map_arg((n.args, n.kwargs), self._float_codes)
        return n.target(*args, **kwargs)

    def _move(self, node: fx.Node, grid: Grid) -> Any:
        """Apply an operation that only moves values to uint8 codes; padding with zero becomes the zero point."""
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        name = operation(node)
        if name in SAME:  # a clone is dropped, so that a view of it becomes a reshape
            return args[0]
        if name in ("view", "_unsafe_view"):
            return torch.ops.aten.reshape.default(*args, **kwargs)
        if name in PADS and grid.zero_point:
            mode = [] if name == "constant_pad_nd" else ["constant"]
            args, kwargs = (*args[:2], *mode, grid.zero_point), {}
        assert callable(node.target)
        return node.target(*args, **kwargs)

    def _float_codes(self, node: fx.Node) -> Any:
        """The value of a node; uint8 codes are converted to float codes."""
        value, grid = self.env[node], self._uint8.get(node)
        return value if grid is None else custom_node(node, "ToFloat", grid.name, value, torch.float32, value.shape)

    def _custom(self, node: fx.Node) -> Tensor:
        kind, _, key = str(node.target).partition(".")
        name = name_of(key)
        if kind == PRODUCTS:
            return self._product(node, self.network.product(name))
        if kind == TABLES:
            return table_node(node, self.network.table(name), self.fetch_args_kwargs_from_env(node)[0])
        source = node.args[0]
        assert isinstance(source, fx.Node)
        x: Tensor = self.env[source]
        if kind == LAYERS:
            return self._layer(node, self.network.layer(name), x, source)
        grid = self.network.grid(name)
        if kind == QUANTIZERS:
            if grid.carrier == "uint8":
                self._uint8[node] = grid
            dtype = torch.uint8 if grid.carrier == "uint8" else torch.float32
            return custom_node(node, "Quantize", name, x, dtype, x.shape)
        kind = "Dequantize" if source in self._uint8 else "Scale"
        return custom_node(node, kind, name, x, torch.float32, x.shape)

    def _layer(self, node: fx.Node, layer: IntegerLayer, x: Tensor, source: fx.Node) -> Tensor:
        if layer.arithmetic == "integer" and not layer.dynamic and source not in self._uint8:
            assert layer.input is not None
            x = custom_node(node, "ToUint8", layer.input, x, torch.uint8, x.shape)
        if layer.output is not None:
            self._uint8[node] = self.network.grid(layer.output)
        dtype = torch.float32 if layer.output is None else torch.uint8
        more = {"source": source.name} if layer.dynamic else {}
        return custom_node(node, "Layer", layer.name, x, dtype, output_shape(layer, x), **more)

    def _product(self, node: fx.Node, product: IntegerProduct) -> Tensor:
        operands: list[Tensor] = []
        for source, grid in zip(node.args, (product.left, product.right), strict=True):
            assert isinstance(source, fx.Node)
            x: Tensor = self.env[source]
            if product.arithmetic == "integer" and source not in self._uint8:
                assert grid is not None
                x = custom_node(node, "ToUint8", grid, x, torch.uint8, x.shape)
            operands.append(x)
        if product.output is not None:
            self._uint8[node] = self.network.grid(product.output)
        dtype = torch.float32 if product.output is None else torch.uint8
        return custom_node(node, "Product", product.name, tuple(operands), dtype, product_shape(*operands))


def custom_node(
    node: fx.Node, kind: str, name: str, x: Tensor | tuple[Tensor, ...], dtype: torch.dtype, shape: Sequence[Any],
    **more: str,
) -> Tensor:  # fmt: skip
    """A node of the domain "bayesbits" that names a part or grid of the network and a node of the program."""
    inputs = x if isinstance(x, tuple) else (x,)
    attributes: dict[str, Any] = {"of": name, "node": node.name, **more}
    result: Tensor = torch.onnx.ops.symbolic(
        f"{DOMAIN}::{kind}", inputs, attributes, dtype=dtype, shape=list(shape), version=1
    )
    return result


def table_node(node: fx.Node, table: IntegerTable, args: tuple[Any, ...]) -> Tensor:
    """The rows of a table of embeddings that are looked up, or a whole weight of a recurrent layer."""
    if table.kind == RECURRENT:
        return custom_node(node, "Matrix", table.name, (), torch.float32, [table.rows, table.columns])
    (indices,) = args
    return custom_node(node, "Table", table.name, indices, torch.float32, [*indices.shape, table.columns])


def _moves(node: fx.Node) -> bool:
    """Whether an operation only moves values, or selects among them, so that it can be applied to uint8 codes."""
    name = operation(node)
    if name == "pad" and len(node.args) > 2 and node.args[2] != "constant":
        return False
    return name in MOVES or name in SAME or name in PADS or _SELECTIONS.fullmatch(name) is not None


def _mixed(uint8: list[bool], node: fx.Node) -> bool:
    """Whether an operation reads other tensors than uint8 codes; the indices of index_select do not count."""
    return operation(node) != "index_select" and not all(uint8)


def output_shape(layer: IntegerLayer, x: Tensor) -> list[Any]:
    """The shape of a layer's output."""
    if layer.kind == "linear":
        return [*x.shape[:-1], layer.weight_shape[0]]
    axes = len(layer.weight_shape) - 2
    window = [d * (k - 1) for d, k in zip(layer.dilation, layer.weight_shape[2:], strict=True)]
    sizes = list(zip(x.shape[-axes:], layer.stride, layer.padding, window, strict=True))
    if layer.kind == "conv":
        return [*x.shape[: -axes - 1], layer.weight_shape[0], *((n + 2 * p - w - 1) // s + 1 for n, s, p, w in sizes)]
    extra = layer.output_padding
    spatial = [(n - 1) * s - 2 * p + w + 1 + e for (n, s, p, w), e in zip(sizes, extra, strict=True)]
    return [*x.shape[: -axes - 1], layer.weight_shape[1] * layer.groups, *spatial]


def product_shape(left: Tensor, right: Tensor) -> list[Any]:
    """The shape of the matrix product of two tensors."""
    stacked = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])  # type: ignore[no-untyped-call]
    return [*stacked, left.shape[-2], right.shape[-1]]


class _CustomNodeModule(nn.Module):
    """The module that torch's exporter is given."""

    def __init__(self, interpreter: Interpreter, program: fx.GraphModule, network: IntegerNetwork) -> None:
        super().__init__()
        self.interpreter, self.program, self.network = interpreter, program, network

    def forward(self, *inputs: Tensor) -> Any:
        return self.interpreter(self.program, self.network).run(*inputs)


def export_with_custom_nodes(
    program: fx.GraphModule,
    network: IntegerNetwork,
    inputs: tuple[Tensor, ...],
    opset: int,
    interpreter: Interpreter = CustomNodeInterpreter,
) -> ModelProto:
    """The ONNX graph with custom nodes, for inputs of any size where the network takes them.

    Its inputs and outputs are in the order of the program; `tensor_names.name_inputs_and_outputs` names them. The
    interpreter runs the program with custom nodes, and decides what lies between them. Where torch's exporter cannot
    write all sizes that may change, only that of the batch may, and a warning says so.
    """
    module = _CustomNodeModule(interpreter, program, network).eval()
    places = network.structure.dynamic_places
    try:
        return _export(module, inputs, places, opset)
    except Exception as error:  # torch's exporter raises many kinds of errors
        batch = frozenset(place for place in places if place[1] == 0)
        if batch == places:
            raise
        model = _export(module, inputs, batch, opset)
        said = (str(error.__cause__ or error).strip() or type(error).__name__).splitlines()[0]
        warnings.warn(
            "the file takes inputs of these sizes alone, in batches of any size, and not the other sizes that the "
            f"deployed network takes: torch's ONNX exporter says: {said}",
            stacklevel=4,
        )
        return model


def _export(
    module: nn.Module, inputs: tuple[Tensor, ...], places: Collection[tuple[int, int]], opset: int
) -> ModelProto:
    """Export a module; `places` are the sizes of inputs that may change, as in `Structure.dynamic_places`."""
    inputs = tuple(x.detach().clone() for x in inputs)  # torch would merge one tensor that is given twice
    inputs, marks = mark_sizes(inputs, dict.fromkeys(sorted(places), Dim.AUTO))
    with quiet_exporter(), torch.no_grad():
        exported = torch.export.export(module, inputs, dynamic_shapes=(marks,), strict=False)
        return translate(exported, opset)


def translate(exported: ExportedProgram, opset: int) -> ModelProto:
    """An exported network as torch translates it, without the traces of source files that torch stores with its nodes.

    They would show paths of this machine to everyone who gets the file, and make equal networks unequal files. Masks of
    attention hide what they should.
    """
    from bayesbits.deploy.onnx.masked_attention import hide_by_infinity  # imports onnx, which is optional

    prepare_graph(exported)
    translated = torch.onnx.export(exported, dynamo=True, opset_version=opset, verbose=False)
    assert translated is not None
    model: ModelProto = translated.model_proto  # torch builds a new one at every access
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        kept = [entry for entry in node.metadata_props if entry.key != STACK_TRACE]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    hide_by_infinity(model)
    return model


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Suppress the warnings and log lines of torch's exporter, and keep its table of translations."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir", "onnxscript")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), keep_onnx_translations():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def remove_domain(model: ModelProto) -> None:
    """Remove the domain of the custom nodes from a model that has none of them any more."""
    kept = [opset for opset in model.opset_import if opset.domain != DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(kept)
