"""The deployed network as an ONNX graph in which layers and quantizers are still opaque nodes.

torch's own exporter translates whatever stays float (softmax, normalization, attention). It meets every layer,
quantizer and dequantizer as one node of our own domain, which only names it; `nodes` writes what those compute. In
between, codes travel as unsigned integers of 8 bits, as the runtime carries them: code plus zero point of its grid.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim

from bayesbits.graph.channel_rules import MOVES, PADS, SAME
from bayesbits.graph.exported_program import operation
from bayesbits.records.integer_network import Grid, IntegerLayer, IntegerNetwork
from bayesbits.utils.naming import name_of

if TYPE_CHECKING:
    from onnx import ModelProto

DOMAIN = "bayesbits"
OPSET, IR_VERSION = 21, 10

_CHOICES = re.compile(r"cat|index_select|getitem|amax|max_pool\dd")


class Carrying(fx.Interpreter):
    """Runs a deployed program with opaque nodes in place of its layers and quantizers, and carried codes."""

    def __init__(self, program: fx.GraphModule, network: IntegerNetwork) -> None:
        super().__init__(program)
        self.network = network
        self._carried: dict[fx.Node, Grid] = {}

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "call_module":
            return self._opaque(n)
        if n.op != "call_function" or not any(used in self._carried for used in n.all_input_nodes):
            return super().run_node(n)
        tensors = [used for used in n.all_input_nodes if isinstance(self.env[used], Tensor | list | tuple)]
        if _moves(n) and tensors[0] in self._carried and not _mixed([used in self._carried for used in tensors], n):
            grid = self._carried[n] = self._carried[tensors[0]]
            return self._moved(n, grid)
        assert callable(n.target)
        args, kwargs = fx.node.map_arg((n.args, n.kwargs), self._number)
        return n.target(*args, **kwargs)

    def _moved(self, node: fx.Node, grid: Grid) -> Any:
        """What an operation that only moves values does to carried codes: the same, but that zero is a zero point."""
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        name = operation(node)
        if name in SAME:  # a clone that only made codes contiguous goes, so that a view of it is a reshape
            return args[0]
        if name in ("view", "_unsafe_view"):
            return torch.ops.aten.reshape.default(*args, **kwargs)
        if name in PADS and grid.zero_point:
            mode = [] if name == "constant_pad_nd" else ["constant"]
            args, kwargs = (*args[:2], *mode, grid.zero_point), {}
        assert callable(node.target)
        return node.target(*args, **kwargs)

    def _number(self, node: fx.Node) -> Any:
        """The value of a node, with carried codes as the numbers that they are."""
        value, grid = self.env[node], self._carried.get(node)
        return value if grid is None else opaque(node, "Center", grid.name, value, torch.float32, value.shape)

    def _opaque(self, node: fx.Node) -> Tensor:
        kind, _, key = str(node.target).partition(".")
        name = name_of(key)
        source = node.args[0]
        assert isinstance(source, fx.Node)
        x: Tensor = self.env[source]
        if kind == "layers":
            return self._layer(node, self.network.layer(name), x, source)
        grid = self.network.grid(name)
        if kind == "quantizers":
            carry = grid.carrier == "uint8"
            if carry:
                self._carried[node] = grid
            return opaque(node, "Quantize", name, x, torch.uint8 if carry else torch.float32, x.shape)
        if source in self._carried:
            return opaque(node, "Dequantize", name, x, torch.float32, x.shape)
        return opaque(node, "Scale", name, x, torch.float32, x.shape)

    def _layer(self, node: fx.Node, layer: IntegerLayer, x: Tensor, source: fx.Node) -> Tensor:
        if layer.arithmetic == "integer" and source not in self._carried:
            assert layer.input is not None
            x = opaque(node, "Carry", layer.input, x, torch.uint8, x.shape)
        if layer.output is not None:
            self._carried[node] = self.network.grid(layer.output)
        return opaque(
            node, "Layer", layer.name, x, torch.float32 if layer.output is None else torch.uint8, _shape(layer, x)
        )


def opaque(node: fx.Node, kind: str, name: str, x: Tensor, dtype: torch.dtype, shape: Sequence[Any]) -> Tensor:
    """A node of our own domain, which names a layer or grid of the network and the node of the program."""
    result: Tensor = torch.onnx.ops.symbolic(
        f"{DOMAIN}::{kind}", (x,), {"of": name, "node": node.name}, dtype=dtype, shape=list(shape), version=1
    )
    return result


def _moves(node: fx.Node) -> bool:
    """Whether an operation only moves values, or chooses among them: it does the same to carried codes."""
    name = operation(node)
    if name == "pad" and len(node.args) > 2 and node.args[2] != "constant":
        return False
    return name in MOVES or name in SAME or name in PADS or _CHOICES.fullmatch(name) is not None


def _mixed(carried: list[bool], node: fx.Node) -> bool:
    """Whether codes meet something else; the positions that index_select reads are none."""
    return operation(node) != "index_select" and not all(carried)


def _shape(layer: IntegerLayer, x: Tensor) -> list[Any]:
    """The shape of what a layer returns."""
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


class _Opaque(nn.Module):
    """What is given to the exporter."""

    def __init__(self, program: fx.GraphModule, network: IntegerNetwork) -> None:
        super().__init__()
        self.program, self.network = program, network

    def forward(self, *inputs: Tensor) -> Any:
        return Carrying(self.program, self.network).run(*inputs)


def export_opaque(
    program: fx.GraphModule, network: IntegerNetwork, inputs: tuple[Tensor, ...], opset: int
) -> ModelProto:
    """The ONNX graph with opaque nodes, for batches of any size where the network takes them.

    Its inputs and outputs are in the order of the program, and have any names; see `name_ends`.
    """
    structure = network.structure
    inputs = tuple(x.detach().clone() for x in inputs)  # one tensor given twice would be taken for one input
    inputs = tuple(
        torch.cat([x, x]) if own and len(x) == 1 else x for x, own in zip(inputs, structure.batched, strict=True)
    )
    marks = tuple({0: Dim.AUTO} if own else None for own in structure.batched)
    module = _Opaque(program, network).eval()
    with quiet(), torch.no_grad():
        exported = torch.export.export(module, inputs, dynamic_shapes=(marks,), strict=False)
        translated = torch.onnx.export(exported, dynamo=True, opset_version=opset, verbose=False)
    assert translated is not None
    model: ModelProto = translated.model_proto
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Without what torch's exporter says about itself and about packages that it would know, too."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir", "onnxscript")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
