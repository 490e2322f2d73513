"""Layers of the float graph become modules of the deployed network, and their batch norms go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from bayesbits.deploy.rewrite.program import FloatProgram, arguments
from bayesbits.graph.exported_program import operation
from bayesbits.graph.layers import BATCH_NORMS
from bayesbits.records.topology import Layer
from bayesbits.utils.naming import key_of

LAYERS = "layers"


@dataclass(frozen=True)
class Geometry:
    """How a convolution moves over its input; empty for linear layers."""

    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()


@dataclass
class LayerNode:
    """A layer in the graph."""

    layer: Layer
    geometry: Geometry
    calls: list[fx.Node]


def fold(program: FloatProgram) -> list[LayerNode]:
    """Put modules in place of layers and their batch norms.

    The weights of the layers are not looked at here: `network` fills the modules.
    """
    found = []
    for entry in program.reading.layers:
        layer = program.reading.topology.layer(entry.name)
        calls, geometry = [], Geometry()
        for twin in entry.calls:
            node = program.node_of[twin]
            data, geometry = _geometry(program.graph, node, layer)
            with program.graph.inserting_before(node):
                call = program.graph.call_module(f"{LAYERS}.{key_of(layer.name)}", (data,))
            call.meta = dict(node.meta)
            _replace(program, twin, call)
            if layer.norm is not None:
                norm = next(user for user in twin.users if operation(user) in BATCH_NORMS)
                result = norm
                if not isinstance(norm.meta["val"], torch.Tensor):
                    result = next(user for user in norm.users if user.args[1] == 0)
                _replace(program, result, call)
            calls.append(call)
        found.append(LayerNode(layer, geometry, calls))
    remove_dead(program.graph)
    return found


def remove_dead(graph: fx.Graph) -> None:
    """Erase what nothing reads."""
    for node in reversed(graph.nodes):
        if node.op not in ("placeholder", "output") and not node.users:
            graph.erase_node(node)


def _replace(program: FloatProgram, twin: fx.Node, call: fx.Node) -> None:
    program.node_of[twin].replace_all_uses_with(call)
    program.node_of[twin] = call


def _geometry(graph: fx.Graph, node: fx.Node, layer: Layer) -> tuple[fx.Node, Geometry]:
    """The tensor that a layer's node reads, and how it moves over it."""
    given = arguments(node)
    data = given["input"]
    assert isinstance(data, fx.Node)
    if layer.kind == "linear":
        return data, Geometry()
    axes = len(layer.weight_shape) - 2

    def spread(value: Any) -> tuple[int, ...]:
        values = [value] if isinstance(value, int) else list(value)
        return tuple(values * axes if len(values) == 1 else values)

    padding, dilation = given["padding"], spread(given["dilation"])
    if padding == "same":
        totals = [step * (size - 1) for step, size in zip(dilation, layer.weight_shape[2:], strict=True)]
        padding = [total // 2 for total in totals]
        if any(total % 2 for total in totals):
            amounts = [side for total in reversed(totals) for side in (0, total % 2)]
            with graph.inserting_before(node):
                data = graph.call_function(torch.ops.aten.constant_pad_nd.default, (data, amounts, 0.0))
    elif padding == "valid":
        padding = [0]
    output_padding = spread(given.get("output_padding") or 0)
    return data, Geometry(spread(given["stride"]), spread(padding), dilation, output_padding)
