"""What torch.export says about a network, in the few terms that the rest of `graph` needs.

The network is exported in its evaluation form (no dropout, fixed batch-norm statistics) and made functional (no
operation changes a tensor in place), only to be read: training flags, parameters, buffers and the random state are
the same afterwards.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind

from bayesbits.graph.flattened import FlatNetwork, inner_path
from bayesbits.utils.torch_private import HigherOrderOperator, OpOverload

# Raised inside torch.export about its own code, and about tensors that recurrent modules cache and it puts back.
EXPORT_WARNINGS = (
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    r"The tensor attributes? .* assigned during export",
)


@dataclass(frozen=True)
class Program:
    """An exported network: its nodes in running order, and what they have to do with the user's modules."""

    model: nn.Module
    """The user's network."""
    nodes: tuple[fx.Node, ...]
    """The operations, in the order in which they run."""
    inputs: frozenset[fx.Node]
    """What the user hands in."""
    outputs: frozenset[fx.Node]
    """What the network returns."""
    parameters: Mapping[fx.Node, str]
    """Placeholders of parameters, with a name of theirs in the model."""
    tensor_outputs: Mapping[str, tuple[int, ...]]
    """Modules whose output is one tensor, with its shape."""

    def calls(self, node: fx.Node) -> list[tuple[str, str]]:
        """The module calls that a node lies in, outermost first: a key for the call, and the module's path."""
        stack = node.meta.get("nn_module_stack") or {}
        return [(key, self.canonical_path(inner_path(path))) for key, (path, _) in stack.items() if path]

    def path(self, node: fx.Node) -> str:
        """The path of the innermost module that a node lies in; "" for the network itself."""
        calls = self.calls(node)
        return calls[-1][1] if calls else ""

    def canonical_path(self, path: str) -> str:
        """The first name of a module that may have several."""
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
    def _modules(self) -> Mapping[str, nn.Module]:
        return dict(self.model.named_modules(remove_duplicate=False))

    @cached_property
    def _first_names(self) -> Mapping[int, str]:
        return {id(module): name for name, module in self.model.named_modules()}


def operation(node: fx.Node) -> str:
    """The plain name of a node's operation, such as "conv2d" or "getitem"."""
    if isinstance(node.target, OpOverload):
        return str(node.target._schema.name).removeprefix("aten::")
    return getattr(node.target, "__name__", str(node.target))


def shape(node: fx.Node) -> tuple[int, ...]:
    """The shape of the tensor that a node makes."""
    return tuple(int(size) for size in node.meta["val"].shape)


def is_float(node: fx.Node) -> bool:
    """Whether a node makes one tensor of floating-point numbers."""
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point()


def export(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Program:
    """Read a network with torch.export; raises what torch.export raises, and for graphs that hide layers or shapes."""
    flat = FlatNetwork(model, args, kwargs)
    exported, shapes = export_functional(flat, flat.examples())
    _check_readable(exported.graph)
    return read_program(model, exported.graph, exported.graph_signature, shapes)


def export_functional(
    flat: FlatNetwork, examples: tuple[Tensor, ...], marks: Any = None
) -> tuple[ExportedProgram, dict[str, tuple[int, ...]]]:
    """The exported network in its evaluation form, made functional; and the modules whose output is one tensor.

    `marks` says for each example which of its sizes may be any.
    """
    with torch.random.fork_rng(devices=[]):
        exported, shapes = export_flat(flat, examples, marks)
        with _quiet(), torch.no_grad():
            return exported.run_decompositions({}), shapes


def export_flat(
    flat: FlatNetwork, examples: tuple[Tensor, ...], marks: Any = None
) -> tuple[ExportedProgram, dict[str, tuple[int, ...]]]:
    """The exported network in its evaluation form, and the modules whose output is one tensor."""
    with _quiet(), evaluation_form(flat), torch.no_grad(), tensor_outputs(flat.network) as shapes, _without_autocast():
        dynamic = None if marks is None else (marks,)
        return torch.export.export(flat, examples, dynamic_shapes=dynamic, strict=False), shapes


def read_program(
    model: nn.Module, graph: fx.Graph, signature: ExportGraphSignature, shapes: Mapping[str, tuple[int, ...]]
) -> Program:
    """An exported graph whose shapes are all numbers."""
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
        parameters={
            placeholders[spec.arg.name]: inner_path(str(spec.target))
            for spec in signature.input_specs
            if spec.kind is InputKind.PARAMETER
        },
        tensor_outputs=shapes,
    )


def _check_readable(graph: fx.Graph) -> None:
    """Refuse graphs whose shapes depend on the data, or with operations that run graphs of their own (torch.cond)."""
    for node in graph.nodes:
        if isinstance(node.target, HigherOrderOperator):
            raise RuntimeError(f"the exported graph runs other graphs inside of {node.name}")
        values = node.meta.get("val")
        for value in values if isinstance(values, (tuple, list)) else [values]:
            if isinstance(value, Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape):
                raise RuntimeError(f"the shape of {node.name} depends on the data")


@contextmanager
def evaluation_form(model: nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode, and each of its modules back to what it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def tensor_outputs(model: nn.Module) -> Iterator[dict[str, tuple[int, ...]]]:
    """Collect, while the network runs, which modules return one tensor, and its shape."""
    shapes: dict[str, tuple[int, ...]] = {}
    handles = []
    for name, module in model.named_modules():

        def record(module: nn.Module, inputs: Any, output: Any, name: str = name) -> None:
            if isinstance(output, Tensor):
                shapes[name] = tuple(output.shape)

        handles.append(module.register_forward_hook(record))
    try:
        yield shapes
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _without_autocast() -> Iterator[None]:
    """Let autocast regions do nothing for a while.

    torch.export puts such a region into a graph of its own, and making that functional loses the names of the modules
    in it. Precision does not matter for reading.
    """
    with (
        patch.object(torch.autocast, "__enter__", lambda self: self),
        patch.object(torch.autocast, "__exit__", lambda self, *exception: False),
    ):
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings about export itself, and without the partial graph that torch prints where it gives up."""
    shapes = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
        for message in EXPORT_WARNINGS:
            warnings.filterwarnings("ignore", message=message)
        before, shapes.disabled = shapes.disabled, True
        try:
            yield
        finally:
            shapes.disabled = before
