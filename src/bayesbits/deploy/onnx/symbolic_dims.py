"""Sizes in an ONNX graph that are no numbers: their values for the example inputs, and readable names.

torch writes a size as an expression of symbols, such as "2*s77". Which form of an operation is the fastest depends on
sizes; it is chosen by those of the example inputs.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnx import GraphProto

from bayesbits.records.integer_network import Structure

_OPERATIONS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def example_symbols(graph: GraphProto, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """The value that every symbol in the sizes of a graph's inputs has for inputs of these shapes."""
    values: dict[str, int] = {}
    for value, shape in zip(graph.input, shapes, strict=False):
        for dim, size in zip(value.type.tensor_type.shape.dim, shape, strict=False):
            if dim.HasField("dim_param"):
                values.setdefault(dim.dim_param, size)
    return values


def example_size(dim: Any, symbols: Mapping[str, int]) -> int | None:
    """The size of a dimension for the example inputs; None where it is not known."""
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    try:
        return _evaluate(ast.parse(dim.dim_param, mode="eval").body, symbols)
    except (SyntaxError, KeyError, ZeroDivisionError):
        return None


def _evaluate(part: ast.expr, symbols: Mapping[str, int]) -> int:
    if isinstance(part, ast.Constant) and isinstance(part.value, int):
        return part.value
    if isinstance(part, ast.Name):
        return symbols[part.id]
    if isinstance(part, ast.BinOp):
        return _OPERATIONS[type(part.op)](_evaluate(part.left, symbols), _evaluate(part.right, symbols))
    if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub):
        return -_evaluate(part.operand, symbols)
    raise KeyError(ast.dump(part))


def name_sizes(graph: GraphProto, structure: Structure) -> None:
    """Give the sizes of inputs and outputs that may change the names of the deployed network."""
    names: dict[str, str] = {}
    for size in structure.sizes or ():
        for number, dim in size.places:
            found = graph.input[number].type.tensor_type.shape.dim[dim]
            if found.HasField("dim_param"):
                names.setdefault(found.dim_param, size.name)
    for value in (*graph.input, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.dim_param = re.sub(r"\w+", lambda word: names.get(word.group(), word.group()), dim.dim_param)
