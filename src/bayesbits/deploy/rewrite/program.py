"""The exported float network as a graph that deployment rewrites, and what `graph` reads in it.

torch.export gives a graph for batches of any size, with sizes that are symbols. Reading channels needs numbers. So the
graph has a twin with the sizes of the example inputs, node by node, which is read; what is found there is said of the
first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from bayesbits.deploy.signature import in_order, read_arguments
from bayesbits.graph.export import export_dynamic_batch, export_functional, has_dynamic_batch, output_shapes
from bayesbits.graph.exported_program import Program, read_program
from bayesbits.graph.flat_network import FlatNetwork, inner_path
from bayesbits.graph.trace import Reading, read
from bayesbits.records.integer_network import Argument
from bayesbits.utils.modes import evaluation_mode
from bayesbits.utils.naming import key_of
from bayesbits.utils.pytree import Tree
from bayesbits.utils.torch_private import FakeTensorMode, OpOverload

FLOATS = "floats"


def arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operation by name, defaults included."""
    assert isinstance(node.target, OpOverload)
    expected = node.target._schema.arguments
    given = {argument.name: argument.default_value for argument in expected if argument.has_default_value()}
    given |= dict(zip((argument.name for argument in expected), node.args, strict=False))
    return given | dict(node.kwargs)


class Floats(nn.Module):
    """What stays in float: parameters, buffers and constants, by key."""

    def add(self, name: str, tensor: Tensor, *, parameter: bool) -> str:
        """Take a tensor in; returns the target of its get_attr nodes."""
        if key_of(name) not in self._buffers and key_of(name) not in self._parameters:
            self.put(key_of(name), tensor.detach().clone(), parameter=parameter)
        return f"{FLOATS}.{key_of(name)}"

    def put(self, plain: str, tensor: Tensor, *, parameter: bool) -> None:
        """Take a tensor in under a key."""
        if parameter and tensor.is_floating_point():
            self.register_parameter(plain, nn.Parameter(tensor, requires_grad=False))
        else:
            self.register_buffer(plain, tensor)

    def keep(self, targets: Collection[str]) -> None:
        """Forget what no get_attr node reads any more."""
        for held in (self._parameters, self._buffers):
            for name in [name for name in held if f"{FLOATS}.{name}" not in targets]:
                del held[name]


@dataclass
class FloatProgram:
    """The float network as a graph to rewrite, and what was read in it."""

    graph: fx.Graph
    """Placeholders are the user's inputs, get_attr nodes what lies in `floats`."""
    floats: Floats
    takes: tuple[Argument, ...]
    returns: Tree
    examples: tuple[Tensor, ...]
    batched: tuple[bool, ...]
    """For each input whether its first size may be any."""
    node_of: dict[fx.Node, fx.Node]
    """For every node of the program that was read, what stands for it in the graph."""
    program: Program
    reading: Reading


def export_float(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FloatProgram:
    """Export a float network, for batches of any size where that is possible."""
    kwargs = in_order(model, args, kwargs)
    flat = FlatNetwork(model, args, kwargs)
    exported = export_dynamic_batch(flat, lambda examples, marks: export_functional(flat, examples, marks)[0])
    copy = _Copy(exported, flat.examples())
    with evaluation_mode(flat), torch.no_grad(), output_shapes(model) as module_outputs:
        returns = flat.returns()
    program = read_program(model, copy.twin_graph, exported.graph_signature, module_outputs)
    return FloatProgram(
        graph=copy.graph,
        floats=copy.floats,
        takes=read_arguments(model, args, kwargs),
        returns=returns,
        examples=flat.examples(),
        batched=has_dynamic_batch(exported),
        node_of=copy.node_of,
        program=program,
        reading=read(program),
    )


class _Copy:
    """An exported graph twice: with attributes in place of parameters, and with numbers in place of symbols."""

    def __init__(self, exported: ExportedProgram, examples: tuple[Tensor, ...]) -> None:
        self.graph, self.twin_graph, self.floats = fx.Graph(), fx.Graph(), Floats()
        self.node_of: dict[fx.Node, fx.Node] = {}
        self._nodes: dict[fx.Node, fx.Node] = {}
        self._twins: dict[fx.Node, Any] = {}
        self._values: dict[fx.Node, Any] = {}
        self._exported, self._examples = exported, iter(examples)
        self._kinds = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        for node in exported.graph.nodes:
            self._copy(node)

    def _copy(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self._copy_placeholder(node)
        elif node.op == "output":
            results: Any = node.args[0]
            kinds = [spec.kind for spec in self._exported.graph_signature.output_specs]
            wanted = [used for used, kind in zip(results, kinds, strict=True) if kind is OutputKind.USER_OUTPUT]
            self.graph.output(tuple(self._nodes[used] for used in wanted))
            self.twin_graph.output(tuple(self._twins[used] for used in results if isinstance(used, fx.Node)))
        elif node.meta.get("val") is not None:  # without a value it is a check, which makes nothing
            assert callable(node.target)
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda used: self._values[used])
            with self._mode, torch.no_grad():
                self._values[node] = node.target(*args, **kwargs)
            self._nodes[node] = self.graph.node_copy(node, lambda used: self._nodes[used])
            self._copy_to_twin(node)

    def _copy_placeholder(self, node: fx.Node) -> None:
        spec = self._kinds[node.name]
        if spec.kind is InputKind.USER_INPUT:
            value = next(self._examples)
            self._nodes[node] = self.graph.node_copy(node)
        else:
            value = {**self._exported.state_dict, **self._exported.constants}[str(spec.target)]
            parameter = spec.kind is InputKind.PARAMETER
            target = self.floats.add(inner_path(str(spec.target)), value, parameter=parameter)
            self._nodes[node] = self.graph.create_node("get_attr", target, name=node.name)
        self._values[node] = self._mode.from_tensor(value)
        self._copy_to_twin(node)

    def _copy_to_twin(self, node: fx.Node) -> None:
        value = self._values[node]
        if not isinstance(value, Tensor | tuple | list):
            self._twins[node] = value
            return
        twin = self.twin_graph.node_copy(node, lambda used: self._twins[used])
        twin.meta["val"] = value
        self._twins[node] = twin
        self.node_of[twin] = self._nodes[node]
