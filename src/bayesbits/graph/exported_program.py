"""An exported network in the few terms that the rest of `graph` needs: its nodes, and which modules they belong to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind

from bayesbits.graph.export import export_functional
from bayesbits.graph.flat_network import FlatNetwork, inner_path
from bayesbits.graph.symbolic_sizes import in_users_code, in_words
from bayesbits.utils.torch_private import HigherOrderOperator, OpOverload, operation_arguments, operation_name


@dataclass(frozen=True)
class Program:
    """An exported network: its nodes, and what they have to do with the user's modules."""

    model: nn.Module
    """The user's network."""
    nodes: tuple[fx.Node, ...]
    """The operations, in the order in which they run."""
    inputs: frozenset[fx.Node]
    """The tensors that the user gives."""
    outputs: frozenset[fx.Node]
    """The tensors that the network returns."""
    parameters: Mapping[fx.Node, str]
    """The placeholders of parameters, each with a name of its parameter in the model."""
    buffers: Mapping[fx.Node, str]
    """The same of buffers."""
    tensor_outputs: Mapping[str, tuple[int, ...]]
    """The modules whose output is one tensor, with its shape."""

    def calls(self, node: fx.Node) -> list[tuple[str, str]]:
        """The module calls that a node lies in, outermost first: a key for the call, and the module's path."""
        stack = node.meta.get("nn_module_stack") or {}
        return [(key, self.canonical_path(inner_path(path))) for key, (path, _) in stack.items() if path]

    def path(self, node: fx.Node) -> str:
        """The path of the innermost module that a node lies in; "" for the network itself."""
        calls = self.calls(node)
        return calls[-1][1] if calls else ""

    def canonical_path(self, path: str) -> str:
        """The first name of a module, which may have several."""
        module = self._modules.get(path)
        return path if module is None else self._first_names[id(module)]

    def module(self, node: fx.Node) -> nn.Module:
        """The innermost module that a node lies in."""
        return self._modules.get(self.path(node), self.model)

    @cached_property
    def calls_of(self) -> Mapping[str, int]:
        """How often each module runs."""
        keys = {call for node in self.nodes for call in self.calls(node)}
        counts: dict[str, int] = {}
        for _, path in keys:
            counts[path] = counts.get(path, 0) + 1
        return counts

    @cached_property
    def nodes_in(self) -> Mapping[str, tuple[fx.Node, ...]]:
        """The nodes that lie in each module call, by the key of the call."""
        nodes: dict[str, list[fx.Node]] = {}
        for node in self.nodes:
            for key, _ in self.calls(node):
                nodes.setdefault(key, []).append(node)
        return {key: tuple(inside) for key, inside in nodes.items()}

    @cached_property
    def _modules(self) -> Mapping[str, nn.Module]:
        return dict(self.model.named_modules(remove_duplicate=False))

    @cached_property
    def _first_names(self) -> Mapping[int, str]:
        return {id(module): name for name, module in self.model.named_modules()}


def operation(node: fx.Node) -> str:
    """The plain name of a node's operation, such as "conv2d" or "getitem"."""
    if isinstance(node.target, OpOverload):
        return operation_name(node.target)
    return getattr(node.target, "__name__", str(node.target))


def arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operation by name, defaults included."""
    assert isinstance(node.target, OpOverload)
    expected = operation_arguments(node.target)
    given = {argument.name: argument.default_value for argument in expected if argument.has_default_value()}
    given |= dict(zip((argument.name for argument in expected), node.args, strict=False))
    return given | dict(node.kwargs)


def shape(node: fx.Node) -> tuple[int, ...]:
    """The shape of the tensor that a node makes."""
    return tuple(int(size) for size in node.meta["val"].shape)


def is_float(node: fx.Node) -> bool:
    """Whether a node makes one tensor of floating-point numbers."""
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point()


def export(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Program:
    """Export a network for reading; raises what torch.export raises, and for graphs that hide layers or shapes."""
    flat = FlatNetwork(model, args, kwargs)
    exported, shapes = export_functional(flat, flat.examples())
    _check_readable(exported.graph)
    return read_program(model, exported.graph, exported.graph_signature, shapes)


def read_program(
    model: nn.Module, graph: fx.Graph, signature: ExportGraphSignature, shapes: Mapping[str, tuple[int, ...]]
) -> Program:
    """The program of an exported graph, all shapes of which are numbers."""
    placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    made = {node.name: node for node in graph.nodes}
    return Program(
        model=model,
        nodes=tuple(node for node in graph.nodes if node.op != "output"),
        inputs=frozenset(
            placeholders[spec.arg.name]
            for spec in signature.input_specs
            if spec.kind is InputKind.USER_INPUT and spec.arg.name in placeholders
        ),
        outputs=frozenset(
            made[spec.arg.name]
            for spec in signature.output_specs
            if spec.kind is OutputKind.USER_OUTPUT and getattr(spec.arg, "name", None) in made
        ),
        parameters=_tensors(signature, placeholders, InputKind.PARAMETER),
        buffers=_tensors(signature, placeholders, InputKind.BUFFER),
        tensor_outputs=shapes,
    )


def _tensors(
    signature: ExportGraphSignature, placeholders: Mapping[str, fx.Node], kind: InputKind
) -> dict[fx.Node, str]:
    """The placeholders of one kind, with the names of their tensors in the model."""
    specs = [spec for spec in signature.input_specs if spec.kind is kind and spec.arg.name in placeholders]
    return {placeholders[spec.arg.name]: inner_path(str(spec.target)) for spec in specs}


def _check_readable(graph: fx.Graph) -> None:
    """Refuse graphs whose shapes depend on the data, or with operations that run graphs of their own (torch.cond)."""
    for node in graph.nodes:
        if isinstance(node.target, HigherOrderOperator):
            raise RuntimeError(f"the exported graph runs other graphs inside {node.name}")
        values = node.meta.get("val")
        for value in values if isinstance(values, (tuple, list)) else [values]:
            if isinstance(value, Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape):
                raise RuntimeError(f"the shape of {node.name}{_place(node)} depends on the data")


def _place(node: fx.Node) -> str:
    """Where the network's code calls an operation, as far as torch knows."""
    frames = re.findall(r'File "(.+)", line (\d+), in (\S+)', node.meta.get("stack_trace") or "")
    users = [frame for frame in frames if in_users_code(frame[0])]
    return f", at {in_words(users[-1][0], int(users[-1][1]), users[-1][2])}," if users else ""
