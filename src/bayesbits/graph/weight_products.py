"""Weights that are multiplied without the standard call of a layer: what computes them, and by what name.

Subclasses of layers with a forward of their own, functions such as `F.conv2d` with a module's parameter, and weights
that are standardized or parametrized all end in a product of data with a tensor that is computed from parameters alone.
Such a product is a layer, and it belongs to the innermost module whose code runs it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from bayesbits.graph.exported_program import Program, arguments, operation, shape
from bayesbits.utils.tensor_expression import Step, TensorExpression, Value, operation_key
from bayesbits.utils.torch_private import OpOverload
from bayesbits.utils.weight_products import SIGNATURES, ProductCall

TRANSPOSES = ("t", "transpose", "permute", "numpy_T", "swapaxes", "swapdims")
PARAMETRIZATIONS = ".parametrizations."


@dataclass(frozen=True)
class Product:
    """A call of a function that multiplies data with a weight, as it is found again while the network runs."""

    owner: str
    """The path of the innermost module whose code calls the function."""
    call: ProductCall
    weight: TensorExpression
    bias: TensorExpression | None
    geometry: Mapping[str, Any]
    """The arguments that are not tensors, by name."""


def operands(node: fx.Node) -> tuple[Any, Any, Any]:
    """The data, the weight and the bias of a product; three times None for other operations."""
    signature = SIGNATURES.get(operation(node)) if node.op == "call_function" else None
    if signature is None:
        return None, None, None
    given = [*node.args, None, None, None]
    bias = None if signature.bias is None else given[signature.bias]
    return given[signature.data], given[signature.weight], bias


class Products:
    """The products of an exported network that are not the standard calls of its layers (`standard`)."""

    def __init__(self, program: Program, standard: Collection[fx.Node]) -> None:
        self.program = program
        self._order = {node: place for place, node in enumerate(program.nodes)}
        self._leaves = {**program.parameters, **program.buffers}
        self._constant: set[fx.Node] = set()
        """The nodes that are computed from parameters and buffers alone."""
        for node in program.nodes:
            inputs = node.all_input_nodes
            known = operation_key(node.target) is not None and not _is_random(node) and node not in standard
            if node in self._leaves or (inputs and known and self._constant.issuperset(inputs)):
                self._constant.add(node)
        self.found = {
            node: call for node, call in self._numbered() if node not in standard and self.obstacle(node) is None
        }
        """The products with a weight, by their nodes."""

    def obstacle(self, node: fx.Node) -> str | None:
        """Why a product is no layer; None where it is one."""
        data, weight, bias = operands(node)
        if not all(isinstance(used, fx.Node) for used in (data, weight)):
            return "it is not called with tensors"
        if weight not in self._constant or not self.parameters(weight):
            return "its weight is not computed from parameters alone"
        if data in self._constant:
            return "it multiplies constants"
        matrix = operation(node) in ("matmul", "mm", "addmm")
        if (matrix and (len(shape(weight)) != 2 or node.kwargs)) or (bias is not None and bias not in self._constant):
            return "it is a product of a form that no layer has"
        outputs = shape(node)[-1] if matrix or operation(node) == "linear" else shape(node)[-len(shape(weight)) + 1]
        return None if bias is None or shape(bias) == (outputs,) else "its bias is no vector over its outputs"

    def _numbered(self) -> Iterator[tuple[fx.Node, ProductCall]]:
        """Every product of data with any tensor, numbered within the call of the innermost module."""
        counts: dict[tuple[str, str, tuple[int, ...]], int] = {}
        for node in self.program.nodes:
            _, weight, _ = operands(node)
            if not isinstance(weight, fx.Node) or not isinstance(weight.meta.get("val"), Tensor):
                continue
            number, sizes = 0, shape(weight)
            for key, _ in self.program.calls(node):  # the innermost call comes last
                place = (key, operation(node), sizes)
                number = counts.get(place, 0)
                counts[place] = number + 1
            yield node, ProductCall(operation(node), sizes, number)

    def parameters(self, node: fx.Node | None) -> list[fx.Node]:
        """The parameters that a constant is computed from, the largest first."""
        found = [used for used in self.closure(node) if used in self.program.parameters]
        return sorted(found, key=lambda used: -used.meta["val"].numel())

    def closure(self, node: fx.Node | None) -> list[fx.Node]:
        """A constant with all that it is computed from, in running order."""
        seen: set[fx.Node] = set()
        waiting = [] if node is None else [node]
        while waiting:
            used = waiting.pop()
            if used not in seen:
                seen.add(used)
                waiting += used.all_input_nodes
        return sorted(seen, key=self._order.__getitem__)

    def product(self, node: fx.Node) -> Product:
        """The product that a node runs."""
        _, weight, bias = operands(node)
        names = ("stride", "padding", "dilation", "groups", "output_padding")
        geometry = {name: value for name, value in arguments(node).items() if name in names}
        return Product(
            owner=self.program.path(node),
            call=self.found[node],
            weight=self._expression(weight),
            bias=None if bias is None else self._expression(bias),
            geometry=geometry,
        )

    def _expression(self, node: fx.Node) -> TensorExpression:
        nodes = self.closure(node)
        nodes = [used for used in nodes if used in self._leaves] + [used for used in nodes if used not in self._leaves]
        index: dict[fx.Node, Any] = {used: Value(place) for place, used in enumerate(nodes)}
        leaves, steps = [], []
        for used in nodes:
            if used in self._leaves:
                path, _, name = self._leaves[used].rpartition(".")
                leaves.append((self.program.model.get_submodule(path), name))
            else:
                key = operation_key(used.target)
                assert key is not None
                args, kwargs = _plain(fx.node.map_arg((used.args, used.kwargs), index.__getitem__))
                steps.append(Step(key, args, kwargs))
        return TensorExpression(tuple(leaves), tuple(steps))

    def stored_parameter(self, node: fx.Node) -> str | None:
        """The parameter that holds a product's weight as [outputs, inputs, ...]; None where the weight is computed."""
        _, weight, _ = operands(node)
        turned = SIGNATURES[operation(node)].inputs_first
        while isinstance(weight, fx.Node) and weight not in self.program.parameters:
            if operation(weight) not in TRANSPOSES or len(shape(weight)) != 2:
                return None
            turned, weight = turned ^ (_moves_axes(weight)), weight.all_input_nodes[0]
        return None if turned or weight is None else self.program.parameters[weight]

    def label(self, node: fx.Node) -> str:
        """A name for the weight of a product after the largest parameter that it is computed from."""
        _, weight, _ = operands(node)
        name = self.program.parameters[self.parameters(weight)[0]]
        if PARAMETRIZATIONS in name:
            path, _, rest = name.rpartition(PARAMETRIZATIONS)
            name = f"{path}.{rest.partition('.')[0]}"
        return name.removesuffix(".weight")


def _moves_axes(node: fx.Node) -> bool:
    """Whether a transposition of a matrix really transposes it."""
    if operation(node) in ("t", "numpy_T"):
        return True
    dims: Any = node.args[1] if operation(node) == "permute" else node.args[1:3]
    return [dim % 2 for dim in dims] != ([0, 1] if operation(node) == "permute" else [dims[0] % 2] * 2)


def _is_random(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _plain(value: Any) -> Any:
    """Arguments of a node in plain tuples, lists and dicts."""
    if isinstance(value, tuple):
        return tuple(_plain(one) for one in value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return {key: _plain(one) for key, one in value.items()} if isinstance(value, dict) else value
