"""The graph of a deployed network as plain JSON data, written and read.

Reading executes nothing. A node may call one of torch's own operations on tensors, an arithmetic operation on sizes, a
module of the record, or read a stored tensor; everything else is refused.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from bayesbits.graph.exported_program import operation
from bayesbits.graph.flat_network import inner_path
from bayesbits.graph.layers import custom_operation_refusal
from bayesbits.utils.torch_private import OpOverload, operation_arguments

SIZES: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name)
    for name in ("add", "sub", "mul", "floordiv", "mod", "neg", "getitem", "eq", "ne", "lt", "le", "gt", "ge")
} | {name: getattr(torch, name) for name in ("sym_int", "sym_float", "sym_max", "sym_min", "sym_not")}
# Operations that make tensors from sizes and numbers alone. Every other operation must read a tensor.
FACTORIES = ("full", "zeros", "ones", "arange", "empty", "scalar_tensor", "eye", "linspace", "tril_indices")
KINDS: dict[str, type] = {"dtype": torch.dtype, "memory_format": torch.memory_format, "layout": torch.layout}


def graph_to_data(graph: fx.Graph) -> list[dict[str, Any]]:
    """The nodes of a graph, in running order."""
    refuse_custom_operations(graph)
    return [
        {
            "name": node.name,
            "op": node.op,
            "target": _target_name(node),
            "args": _encode(node.args, node),
            "kwargs": {name: _encode(value, node) for name, value in node.kwargs.items()},
        }
        for node in graph.nodes
    ]


def graph_from_data(data: Any) -> fx.Graph:
    """The graph that `graph_to_data` wrote; raises a ValueError where the data is no graph of allowed operations."""
    if not isinstance(data, list):
        raise ValueError(f"a graph is a list of nodes, found {type(data).__name__}")
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}
    for entry in data:
        try:
            name, op, target = entry["name"], entry["op"], entry["target"]
            args = tuple(_decode(value, nodes) for value in entry["args"])
            kwargs = {key: _decode(value, nodes) for key, value in entry["kwargs"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a node of the graph is not one: {error!r} in {str(entry)[:200]}") from error
        if op == "output":
            graph.output(tuple(args[0]))
        elif op in ("placeholder", "get_attr", "call_module", "call_function") and isinstance(target, str):
            found: Any = _operation(target) if op == "call_function" else target
            nodes[name] = graph.create_node(op, found, args, kwargs, name=name)
        else:
            raise ValueError(f"the node {name!r} is a {op!r} of {target!r}, which no stored graph has")
    return graph


def refuse_custom_operations(graph: fx.Graph) -> None:
    """Raise where a graph calls an operation that other code has registered: no other process knows it."""
    for node in graph.nodes:
        if isinstance(node.target, OpOverload) and not str(node.target).startswith("aten."):
            *_, (path, _) = (node.meta.get("nn_module_stack") or {"": ("", None)}).values()
            raise ValueError(f"{inner_path(path) or 'the network'}: {custom_operation_refusal(operation(node))}")


def _target_name(node: fx.Node) -> str:
    if not callable(node.target):
        return str(node.target)
    if isinstance(node.target, OpOverload):
        name = str(node.target)
        _operation(name)
        return name
    for name, function in SIZES.items():
        if function is node.target:
            return f"size.{name}"
    raise ValueError(f"{node.name} calls {node.target}, which is none of torch's own operations and cannot be stored")


def _operation(name: str) -> Any:
    """The operation of this name; raises unless it only computes."""
    parts = name.split(".")
    if parts[0] == "size" and len(parts) == 2 and parts[1] in SIZES:
        return SIZES[parts[1]]
    if parts[0] != "aten" or len(parts) != 3:
        raise ValueError(f"{name!r} is none of torch's own operations, and is neither stored nor read")
    packet = getattr(torch.ops.aten, parts[1], None)
    found = getattr(packet, parts[2], None)
    if not isinstance(found, OpOverload):
        raise ValueError(f"this version of torch has no operation {name!r}")
    reads_a_tensor = any("Tensor" in str(argument.type) for argument in operation_arguments(found))
    if not reads_a_tensor and parts[1] not in FACTORIES:
        raise ValueError(f"{name!r} computes nothing out of tensors, and is neither stored nor read")
    return found


def _encode(value: Any, node: fx.Node) -> Any:
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_encode(item, node) for item in value]
    if isinstance(value, torch.device):
        return {"device": value.type}
    for kind, cls in KINDS.items():
        if isinstance(value, cls):
            return {kind: str(value).removeprefix("torch.")}
    raise ValueError(f"{node.name} has an argument of type {type(value).__name__}, which cannot be stored")


def _decode(value: Any, nodes: dict[str, fx.Node]) -> Any:
    if isinstance(value, list):
        return [_decode(item, nodes) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "node":
        return nodes[content]
    if kind == "number":
        return float(content)
    if kind == "device":
        return torch.device("cpu" if content == "cpu" else str(content))
    found = getattr(torch, content)
    if not isinstance(found, KINDS[kind]):
        raise TypeError(f"{content!r} is no {kind}")
    return found
