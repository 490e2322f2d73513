"""Layers and the batch norms behind them become one module call each.

Only the graph changes here: the folded weights and biases are part of the decision (`layer_weights.read_weights`), and
`network` fills the modules with them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from bayesbits.deploy.modules import LAYERS, target_of
from bayesbits.deploy.rewrite.program import Geometry, LayerNode, RewrittenProgram
from bayesbits.graph.exported_program import arguments, operation
from bayesbits.graph.layer_norms import BATCH_NORMS
from bayesbits.graph.layers import data_of
from bayesbits.records.topology import Layer


def fold_batch_norm(program: RewrittenProgram) -> None:
    """Put the call of a module in place of every layer and of the batch norm behind it."""
    for found in program.reading.layers:
        layer = program.reading.topology.layer(found.name)
        calls, geometry = [], Geometry()
        for twin in found.calls:
            node = program.node_of[twin]
            data, geometry = _input_and_geometry(program.graph, node, layer)
            with program.graph.inserting_before(node):
                call = program.graph.call_module(target_of(LAYERS, layer.name), (data,))
            call.meta = dict(node.meta)
            _replace(program, twin, call)
            if layer.norm is not None:
                _replace(program, _batch_norm_output(twin), call)
            calls.append(call)
        program.layers.append(LayerNode(layer, geometry, calls))
    program.erase_unread()


def _batch_norm_output(twin: fx.Node) -> fx.Node:
    """The normalized tensor of the batch norm that reads a layer's output; some operations return it in a tuple."""
    norm = next(user for user in twin.users if operation(user) in BATCH_NORMS)
    if isinstance(norm.meta["val"], torch.Tensor):
        return norm
    return next(user for user in norm.users if user.args[1] == 0)


def _replace(program: RewrittenProgram, twin: fx.Node, call: fx.Node) -> None:
    program.node_of[twin].replace_all_uses_with(call)
    program.node_of[twin] = call


def _input_and_geometry(graph: fx.Graph, node: fx.Node, layer: Layer) -> tuple[fx.Node, Geometry]:
    """The tensor that a layer's node reads, and how the layer moves over it."""
    given, data = arguments(node), data_of(node)
    if layer.kind == "linear":
        return data, Geometry()
    axes = len(layer.weight_shape) - 2

    def per_axis(value: Any) -> tuple[int, ...]:
        values = [value] if isinstance(value, int) else list(value)
        return tuple(values * axes if len(values) == 1 else values)

    padding, dilation = given["padding"], per_axis(given["dilation"])
    if padding == "same":
        totals = [step * (size - 1) for step, size in zip(dilation, layer.weight_shape[2:], strict=True)]
        padding = [total // 2 for total in totals]
        if any(total % 2 for total in totals):  # the odd element is padded behind, by a node of its own
            amounts = [side for total in reversed(totals) for side in (0, total % 2)]
            with graph.inserting_before(node):
                data = graph.call_function(torch.ops.aten.constant_pad_nd.default, (data, amounts, 0.0))
    elif padding == "valid":
        padding = [0]
    output_padding = per_axis(given.get("output_padding") or 0)
    return data, Geometry(per_axis(given["stride"]), per_axis(padding), dilation, output_padding)
