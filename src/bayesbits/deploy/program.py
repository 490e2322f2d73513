"""The exported float network as a graph that deployment rewrites, and what `graph` reads in it.

torch.export gives a graph for batches of any size, with sizes that are symbols. Reading channels needs numbers. So the
graph has a twin with the sizes of the example inputs, node by node, which is read; what is found there is said of the
first.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils._pytree import tree_map_only

from bayesbits.graph.exported import (
    Program,
    evaluation_form,
    export_functional,
    read_program,
    tensor_outputs,
    tensors_in,
)
from bayesbits.graph.trace import Reading, read

FLOATS = "floats"


def key(name: str) -> str:
    """A name with dots as the name of a child module or attribute, which has none."""
    return "/" + name.replace(".", "/")


def arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operation by name, defaults included."""
    assert isinstance(node.target, torch._ops.OpOverload)
    expected = node.target._schema.arguments
    given = {argument.name: argument.default_value for argument in expected if argument.has_default_value()}
    given |= dict(zip((argument.name for argument in expected), node.args, strict=False))
    return given | dict(node.kwargs)


class Floats(nn.Module):
    """What stays in float: parameters, buffers and constants, by key."""

    def add(self, name: str, tensor: Tensor, *, parameter: bool) -> str:
        """Take a tensor in; returns the target of its get_attr nodes."""
        if key(name) not in self._buffers and key(name) not in self._parameters:
            self.put(key(name), tensor.detach().clone(), parameter=parameter)
        return f"{FLOATS}.{key(name)}"

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
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    examples: tuple[Tensor, ...]
    dynamic_batch: bool
    """Whether the graph takes batches of any size."""
    node_of: dict[fx.Node, fx.Node]
    """For every node of the program that was read, what stands for it in the graph."""
    program: Program
    reading: Reading


def export_float(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FloatProgram:
    """Export a float network, for batches of any size where that is possible."""
    kwargs = _in_order(model, args, kwargs)
    inputs, examples = _named_inputs(model, args, kwargs)
    exported, dynamic = _export(model, args, kwargs)
    outputs, module_outputs = _run(model, args, kwargs)
    copy = _Copy(exported, examples)
    program = read_program(model, copy.twin_graph, exported.graph_signature, module_outputs)
    return FloatProgram(
        graph=copy.graph,
        floats=copy.floats,
        inputs=inputs,
        outputs=outputs,
        examples=examples,
        dynamic_batch=dynamic,
        node_of=copy.node_of,
        program=program,
        reading=read(program),
    )


def _in_order(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keyword inputs in the order of the network's forward; the graph has them in the order in which they are given."""
    try:
        bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    except TypeError as error:
        raise ValueError(f"{type(model).__name__} does not take these inputs: {error}") from None
    return {name: kwargs[name] for name in bound if name in kwargs} | kwargs


def _named_inputs(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[str, ...], tuple[Tensor, ...]]:
    """The inputs that are tensors, with the names that the network's forward gives them."""
    bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    named: dict[str, Any] = {}
    for name, value in bound.items():
        named.update(value if name not in kwargs and isinstance(value, dict) else {name: value})
    for name, value in named.items():
        if not isinstance(value, Tensor | bool | int | float | str | None):
            raise ValueError(
                f"the network takes a {type(value).__name__} as {name!r}; deployed networks take tensors, one for each "
                "name. Way out: wrap the network in a module whose forward takes the tensors apart"
            )
    tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    return tuple(tensors), tuple(tensors.values())


def _run(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]]]:
    """The names of what the network returns ("" for one tensor, numbers without keys), and what its modules return."""
    with evaluation_form(model), torch.no_grad(), tensor_outputs(model) as shapes:
        output = model(*args, **kwargs)
    if isinstance(output, Tensor):
        return ("",), shapes
    seen: set[int] = set()
    if not isinstance(output, Mapping):
        return tuple(str(index) for index, _ in enumerate(tensors_in(output, seen))), shapes
    names: list[str] = []
    for name, value in output.items():
        found = len(list(tensors_in(value, seen)))
        names += [str(name)] * found if isinstance(value, Tensor) else [f"{name}.{index}" for index in range(found)]
    return tuple(names), shapes


def _export(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ExportedProgram, bool]:
    """The exported network, and whether it takes batches of any size."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.dim()]
    batch = tensors[0].shape[0] if tensors else 0

    def several(value: Tensor) -> Tensor:  # sizes of 1 would be taken for constants
        return torch.cat([value, value]) if value.dim() and value.shape[0] == batch == 1 else value

    bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    shapes = {
        name: {0: Dim.AUTO} if isinstance(value, Tensor) and value.dim() and value.shape[0] == batch else None
        for name, value in bound.items()
    }
    try:
        more_args, more_kwargs = tree_map_only(Tensor, several, (args, kwargs))
        exported, _ = export_functional(model, more_args, more_kwargs, shapes)
        if all(
            isinstance(node.meta["val"].shape[0], torch.SymInt)
            for node in exported.graph.nodes
            if node.op == "placeholder" and shapes.get(node.name) is not None
        ):
            return exported, True
    except Exception:  # torch.export raises many kinds of errors; with fixed sizes it was read when attaching
        pass
    return export_functional(model, args, kwargs)[0], False


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
            wanted = {
                spec.arg.name
                for spec in self._exported.graph_signature.output_specs
                if spec.kind is OutputKind.USER_OUTPUT and getattr(spec.arg, "name", None) is not None
            }
            results: Any = node.args[0]
            made = tuple(self._nodes[used] for used in results if isinstance(used, fx.Node) and used.name in wanted)
            self.graph.output(made)
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
        value: Any
        if spec.kind is InputKind.USER_INPUT:
            value = next(self._examples) if isinstance(node.meta.get("val"), Tensor) else node.meta.get("val")
        else:
            holder = {**self._exported.state_dict, **self._exported.constants}
            value = holder[str(spec.target)]
        if spec.kind is InputKind.USER_INPUT and not isinstance(value, Tensor):
            self._values[node] = value  # a number that the network was called with: it is in the graph already
            return
        self._values[node] = self._mode.from_tensor(value)
        if spec.kind is InputKind.USER_INPUT:
            self._nodes[node] = self.graph.node_copy(node)
        else:
            target = self.floats.add(str(spec.target), value, parameter=spec.kind is InputKind.PARAMETER)
            self._nodes[node] = self.graph.create_node("get_attr", target, name=node.name)
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
