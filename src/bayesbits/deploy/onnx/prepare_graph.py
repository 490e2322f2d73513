"""What torch's ONNX exporter cannot write, or writes as something else, is put into a form that it writes well."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

aten = torch.ops.aten

NEUTRAL = {aten.add.Tensor: 0.0, aten.sub.Tensor: 0.0, aten.mul.Tensor: 1.0, aten.div.Tensor: 1.0}
"""The numbers that the exporter drops behind these operations, with all that are close to them."""
RELATIVE, ABSOLUTE = 1e-5, 1e-8
"""How close, by the defaults of constants in onnxscript's patterns."""


def prepare_graph(exported: ExportedProgram) -> None:
    """Change an exported network, in place, so that torch's exporter writes what it computes."""
    _subtract_in_float(exported.graph)
    _drop_empty_squeezes(exported.graph)
    _keep_small_numbers(exported)


def _subtract_in_float(graph: fx.Graph) -> None:
    """Convert integers that are subtracted from a float number, as in 1.0 - mask, first: the exporter cannot write the
    two together."""
    for node in graph.find_nodes(op="call_function", target=aten.rsub.Scalar):
        integers, number = node.args[0].meta["val"], node.args[1]
        if isinstance(number, float) and not integers.is_floating_point():
            dtype = torch.result_type(integers, number)
            with graph.inserting_before(node):
                converted = graph.call_function(aten.to.dtype, (node.args[0], dtype))
            converted.meta["val"] = integers.to(dtype)
            node.replace_input_with(node.args[0], converted)


def _drop_empty_squeezes(graph: fx.Graph) -> None:
    """Drop what squeezes a dimension that is larger than one: it does nothing in torch, is an error in ONNX, and the
    exporter writes it all the same."""
    for node in graph.find_nodes(op="call_function", target=aten.squeeze.dim):
        if node.meta["val"].dim() == node.args[0].meta["val"].dim():
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _keep_small_numbers(exported: ExportedProgram) -> None:
    """Let numbers that are nearly neutral, as in x / (y + 1e-12), be tensors of one element.

    The exporter drops additions of single numbers that are nearly zero and products with those that are nearly one, and
    what they keep from a division by zero with them.
    """
    known = {**exported.state_dict, **exported.constants}
    named = {spec.arg.name: known.get(str(spec.target)) for spec in exported.graph_signature.input_specs}
    for target, neutral in NEUTRAL.items():
        for node in exported.graph.find_nodes(op="call_function", target=target):
            other = node.args[1]
            number = named.get(other.name) if isinstance(other, fx.Node) else other
            if node.meta["val"].dim() and _is_close(number, neutral):
                with exported.graph.inserting_before(node):
                    _replace_number(exported.graph, node, other)


def _is_close(number: Any, neutral: float) -> bool:
    """Whether a number, or a tensor that is one, is so close to another that the exporter takes them for equal."""
    if isinstance(number, Tensor):
        number = number.item() if number.dim() == 0 else None
    if not isinstance(number, float) or number == neutral:
        return False
    return math.isclose(number, neutral, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _replace_number(graph: fx.Graph, node: fx.Node, number: Any) -> None:
    if isinstance(number, fx.Node):
        tensor = graph.call_function(aten.unsqueeze.default, (number, 0))
        tensor.meta["val"] = number.meta["val"].unsqueeze(0)
    else:
        dtype = node.meta["val"].dtype
        tensor = graph.call_function(aten.full.default, ([1], number), {"dtype": dtype})
        tensor.meta["val"] = node.meta["val"].new_full((1,), number)
    node.args = (node.args[0], tensor)
