"""Exporting a network for inputs of many sizes: which sizes may change, found by trying, and why others are fixed.

First the network itself is run at other sizes (see `size_trials`). It is exported with those that it takes as symbols,
and the exported graph has to compute what the network does at other sizes; a size at which it does not is fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from bayesbits.graph.flat_network import FlatNetwork
from bayesbits.graph.size_trials import Place, SizeGroup, SizeTrials, resized
from bayesbits.graph.symbolic_sizes import (
    Marks,
    early_stop,
    find_symbols,
    in_users_code,
    in_words,
    mark_sizes,
    name_sizes,
    run_exported,
)
from bayesbits.records.dynamic_size import DynamicSize
from bayesbits.utils.torch_private import size_guards

Export = Callable[[tuple[Tensor, ...], Any], ExportedProgram]
"""Takes examples and their dynamic shapes, and exports the network with them."""

FINDS = "torch.export finds that "
TOLERANCE = 1e-3
"""How far graph and network may be apart, relative to the largest number: they run the same operations."""


@dataclass(frozen=True)
class DynamicExport:
    """An exported network, the sizes that may change, and why others may not."""

    exported: ExportedProgram
    sizes: tuple[DynamicSize, ...] = ()
    reasons: Mapping[Place, str] = field(default_factory=dict)
    """For sizes that were tried and are fixed."""


def export_marked(flat: FlatNetwork, export: Export, marks: Marks) -> DynamicExport:
    """Export a network with these sizes dynamic and all others fixed.

    Raises a ValueError with what torch.export says where the network's code does not allow that.
    """
    examples = flat.examples()
    if not marks:
        return DynamicExport(export(examples, None))
    try:
        exported = export(*mark_sizes(examples, marks))
    except Exception as error:  # torch.export raises many kinds of errors
        raise ValueError(f"the network cannot be exported with these dynamic shapes: {error}") from error
    return DynamicExport(exported, name_sizes(exported, marks, examples, {}, {}, {}))


def export_dynamic(flat: FlatNetwork, export: Export, *, images: bool = True) -> DynamicExport:
    """Export a network with every size dynamic that its code lets change; without `images` not those of images."""
    trials = SizeTrials(flat)
    groups = trials.groups(images=images)
    reasons: dict[Place, str] = {}
    while True:
        exported, groups = _export_groups(flat, export, groups, reasons)
        comparison = _Comparison(trials, exported)
        fixed = {group: reason for group in groups if (reason := comparison.why_fixed(group))}
        if not fixed:
            break
        reasons |= {place: reason for group, reason in fixed.items() for place in group.places}
        groups = [group for group in groups if group not in fixed]
    lows = {place: comparison.lowest(group) for group in groups for place in group.places}
    sizes = name_sizes(exported, {}, flat.examples(), lows, comparison.multiples, comparison.joined)
    return DynamicExport(exported, sizes, trials.refusals | reasons)


def _export_groups(
    flat: FlatNetwork, export: Export, groups: list[SizeGroup], reasons: dict[Place, str]
) -> tuple[ExportedProgram, list[SizeGroup]]:
    """Export with all groups; where that fails, with as many of them as possible. Adds why others are left out."""
    examples = flat.examples()
    chosen: list[SizeGroup] = []
    exported: ExportedProgram | None = None
    attempts = [groups] if groups else []
    while attempts:
        tried = attempts.pop(0)
        marks = {place: Dim.AUTO for group in tried for place in group.places}
        others = {place: group.far for group in tried if not group.is_batch for place in group.places}
        try:
            with early_stop(flat.network, others) if others else nullcontext():
                exported, chosen = export(*mark_sizes(examples, marks)), tried
        except Exception as error:  # torch.export raises many kinds of errors; with fixed sizes it was read before
            if tried is groups and len(groups) > 1:  # one after the other
                attempts = [groups[:1]]
                continue
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            reasons |= dict.fromkeys(tried[-1].places, f"{FINDS}{said}")
        if tried is not groups:
            following = groups.index(tried[-1]) + 1
            attempts = [[*chosen, groups[following]]] if following < len(groups) else []
    return export(examples, None) if exported is None else exported, chosen


class _Comparison:
    """Compares an exported graph with the network at other sizes."""

    def __init__(self, trials: SizeTrials, exported: ExportedProgram) -> None:
        self.trials, self.exported = trials, exported
        self.symbols = find_symbols(exported)
        self.multiples: dict[Place, int] = {}
        """The numbers that sizes have to be multiples of."""
        self.joined: dict[Place, Place] = {}
        """For sizes that cannot change alone, though they have symbols of their own, one size that stands for all."""

    def why_fixed(self, group: SizeGroup) -> str | None:
        """Why the sizes of a group are fixed; None where they can change. Finds the multiple that they have to be."""
        if any(place not in self.symbols for place in group.places):
            return self._reason(group)
        symbols = dict.fromkeys(self.symbols[place] for place in group.places)
        alone = [[place for place in group.places if self.symbols[place] == symbol] for symbol in symbols]
        if self._agrees(group.places, group.far) is False:
            return self._reason(group)
        refused = []
        for places in alone if len(alone) > 1 else ():
            # Two beside three in a batch, whatever the examples have: one beside any other size is broadcast.
            others = dict.fromkeys(group.places, 3) if group.is_batch else {}
            if not self._agrees(places, 2 if group.is_batch else group.far, others):
                refused.append(places)
        if len(refused) == 1:  # it depends on another one, which can change without it, such as a mask that is cut
            refused.append(next(places for places in alone if places not in refused))
        self.joined |= {place: group.places[0] for places in refused for place in places}
        for size in group.near():
            if self._agrees(group.places, size):
                self.multiples |= dict.fromkeys(group.places, abs(size - group.size))
                return None
        return self._reason(group)

    def lowest(self, group: SizeGroup) -> int:
        """1 where the graph is right for that, and 2 otherwise: torch.export has no symbols for 1."""
        return 1 if self._agrees(group.places, 1) else 2

    def _agrees(self, places: Sequence[Place], size: int, others: Mapping[Place, int] | None = None) -> bool | None:
        """Whether graph and network compute the same; None where the network does not take this size.

        `others` are sizes at other places, where they are not those of the examples.
        """
        tensors = list(self.trials.whole if any(dim == 0 for _, dim in places) else self.trials.examples)
        for place, other in (others or {}).items():
            tensors = resized(tensors, [place], other)
        tensors = resized(tensors, places, size)
        expected = self.trials.outputs(tensors)
        if isinstance(expected, Exception):
            return None
        try:
            found = run_exported(self.exported, tensors)
        except Exception:  # where sizes are numbers in the graph, operations raise all kinds of errors
            return False
        return all(_are_close(one, other) for one, other in zip(found, expected, strict=True))

    def _reason(self, group: SizeGroup) -> str:
        """What fixes a size: the line of the network's code where torch.export took it for a number, if it is known."""
        placeholder = next(node for node in self.exported.graph.nodes if node.op == "placeholder")
        for expression, file, line, function in size_guards(placeholder.meta["val"]):
            if in_users_code(file) and str(expression).startswith("Eq("):
                return f"{FINDS}{in_words(file, line, function)} computes with the number"
        return f"{FINDS}the network's code computes with the number {group.size}"


def _are_close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return bool((one == other).all())
    largest = float(other[other.isfinite()].abs().max()) if bool(other.isfinite().any()) else 0.0
    return torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE * largest, equal_nan=True)
