"""Sizes as symbols of torch.export: marking them before an export, and reading and naming them afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from bayesbits.graph.size_trials import Place, resized
from bayesbits.records.dynamic_size import DynamicSize
from bayesbits.utils.torch_private import size_guards, tree_leaves

Marks = Mapping[Place, Any]
"""The sizes that are dynamic, each with what torch.export takes for it, such as `Dim.AUTO`."""

LONGEST_EXPRESSION = 100
"""Inside some networks sizes become longer and longer expressions of an image's size, and exporting them takes hours.
With so many operations in one expression it is given up."""
UNLIMITED = 2**31
"""torch.export names larger numbers where a size has no upper limit."""


def mark_sizes(
    examples: Sequence[Tensor], marks: Marks
) -> tuple[tuple[Tensor, ...], tuple[dict[int, Any] | None, ...]]:
    """The examples and their dynamic shapes; a marked size of 1 is doubled: torch.export takes 1 for a constant."""
    tensors = tuple(examples)
    for number, dim in marks:
        if tensors[number].shape[dim] == 1:
            tensors = tuple(resized(tensors, [(number, dim)], 2))
    shapes = [{dim: mark for (own, dim), mark in marks.items() if own == number} for number in range(len(tensors))]
    return tensors, tuple(shape or None for shape in shapes)


def is_symbolic(size: Any) -> bool:
    """Whether a size of an exported tensor is not a number; a number may have the class of a symbol."""
    if not isinstance(size, torch.SymInt):
        return False
    from torch.fx.experimental.symbolic_shapes import is_concrete_int  # here, as it imports sympy: half a second

    return not is_concrete_int(size)


def find_symbols(exported: ExportedProgram) -> dict[Place, Any]:
    """The symbols of the inputs' sizes; a size that torch.export has a number for, or computes, has none."""
    names = exported.graph_signature.user_inputs
    placeholders = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    values = [placeholders[name].meta["val"] for name in names if isinstance(name, str)]
    found: dict[Place, Any] = {}
    for number, value in enumerate(values):
        for dim, size in enumerate(value.shape):
            if is_symbolic(size) and size.node.expr.is_symbol:
                found[number, dim] = size.node.expr
    return found


def name_sizes(
    exported: ExportedProgram,
    marks: Marks,
    examples: Sequence[Tensor],
    lows: Mapping[Place, int],
    multiples: Mapping[Place, int],
    joined: Mapping[Place, Place],
) -> tuple[DynamicSize, ...]:
    """A size for every symbol of an exported network, with a name of its own.

    Args:
        exported: The network.
        marks: What it was exported with; sizes of a `torch.export.Dim` have its name.
        examples: The inputs that it was exported with.
        lows: Sizes of 1 or 2 from which on the graph is right, where torch.export itself names no larger one.
        multiples: The numbers that sizes have to be multiples of.
        joined: Sizes that have to be equal though torch.export has several symbols for them: one of them for each.
    """
    symbols = find_symbols(exported)
    by_symbol: dict[Any, list[Place]] = {}
    for place, symbol in symbols.items():
        by_symbol.setdefault(joined.get(place, symbol), []).append(place)
    sizes: dict[str, DynamicSize] = {}
    for places in by_symbol.values():
        wanted = _name(places, marks, examples)
        numbered = (f"{wanted}_{number}" if number > 1 else wanted for number in range(1, len(by_symbol) + 1))
        name = next(name for name in numbered if name not in sizes)
        limits = [exported.range_constraints.get(symbols[place]) for place in places]
        low = max((limit.lower for limit in limits if limit is not None), default=2)
        high = min((limit.upper for limit in limits if limit is not None), default=UNLIMITED)
        sizes[name] = DynamicSize(
            name=name,
            places=tuple(places),
            low=int(low) if low > 2 else max(lows.get(place, 1) for place in places),
            high=int(high) if high < UNLIMITED else None,
            multiple=max(multiples.get(place, 1) for place in places),
        )
    return tuple(sizes.values())


def _name(places: Sequence[Place], marks: Marks, examples: Sequence[Tensor]) -> str:
    given = (getattr(marks.get(place), "__name__", None) for place in places)
    named = next((name for name in given if name), None)
    if named is not None:
        return str(named)
    if any(dim == 0 for _, dim in places):
        return "batch"
    number, dim = places[0]
    rank = examples[number].dim()
    return {1: "width", 2: "height", 3: "depth"}.get(rank - dim, "length") if rank >= 4 else "length"


@contextmanager
def early_stop(network: nn.Module, others: Mapping[Place, int]) -> Iterator[None]:
    """Inside the block exporting a network raises as soon as it is clear that sizes cannot be dynamic.

    So it is where they become expressions that are too long, and where the network's code takes a way that it does not
    take at the sizes in `others`.
    """
    seen = 0
    values: dict[Any, int] = {}

    def check(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal seen
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if module is network and not values:
            for (number, dim), other in others.items():
                size = tensors[number].shape[dim]
                values.update({size.node.expr: other} if isinstance(size, torch.SymInt) else {})
        guards = size_guards(tensors[0]) if tensors else []
        for expression, file, line, function in guards[seen:]:
            if expression.count_ops() > LONGEST_EXPRESSION:
                raise RuntimeError("sizes inside the network are expressions of this one that are too long to export")
            if in_users_code(file) and expression.xreplace(values) == False:  # noqa: E712
                raise RuntimeError(f"{in_words(file, line, function)} computes with the number")
        seen = max(seen, len(guards))

    handles = [module.register_forward_pre_hook(check, with_kwargs=True) for module in network.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def in_users_code(file: str) -> bool:
    """Whether a file is part of the network's code, and neither of torch nor of this package; its zoo is such code."""
    package = Path(__file__).parents[1]
    others = (str(Path(torch.__file__).parent), str(package))
    return bool(file) and (not file.startswith(others) or file.startswith(str(package / "zoo")))


def in_words(file: str, line: int, function: str) -> str:
    """A place in the network's code, such as "vit/modeling_vit.py:161 (forward)"."""
    return f"{'/'.join(Path(file).parts[-2:])}:{line} ({function})"


def run_exported(exported: ExportedProgram, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of an exported graph, without torch's checks of sizes."""
    stored, given = {**exported.state_dict, **exported.constants}, iter(tensors)
    inputs = [
        next(given) if spec.kind is InputKind.USER_INPUT else stored[str(spec.target)]
        for spec in exported.graph_signature.input_specs
    ]
    with torch.no_grad():
        results = fx.Interpreter(exported.graph_module).run(*inputs)
    kinds = [spec.kind for spec in exported.graph_signature.output_specs]
    return [result for result, kind in zip(results, kinds, strict=True) if kind is OutputKind.USER_OUTPUT]
