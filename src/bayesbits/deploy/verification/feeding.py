"""The deployed network's codes as answers to the quantizers of the simulation."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesbits.compression.compressor import Compressor
from bayesbits.deploy.verification.copies import Call
from bayesbits.deploy.verification.deployed import CodesNode
from bayesbits.deploy.verification.record import VerificationError
from bayesbits.functional.grid import EDGE
from bayesbits.records.integer_network import Grid
from bayesbits.records.topology import Layer

Matches = dict[Call, CodesNode | None]
"""For every call of a quantizer the deployed codes in its place; None where there are none."""


class Reader:
    """How what a layer reads in the simulation and when deployed correspond."""

    def __init__(self, layer: Layer, module: Any, removed: Collection[int]) -> None:
        spatial = 0 if layer.kind == "linear" else len(layer.weight_shape) - 2
        self.axis = -1 - spatial
        kept = [index for index, channel in enumerate(layer.in_channels) if channel not in removed]
        self.kept = None if len(kept) == len(layer.in_channels) else torch.tensor(kept, dtype=torch.int64)
        self.masks = {
            tuple(channel not in removed for channel in channels)
            for channels in (layer.in_channels, layer.out_channels)
        }
        """Which channels are left, of what it reads and of what it makes."""
        self.padded = [0] * spatial
        """What lies in front of the image, on every axis, that the layer pads by itself: when deployed, that is done in
        front of it."""
        if getattr(module, "padding_mode", "zeros") != "zeros" and module.padding != "valid":
            sizes = zip(module.dilation, module.kernel_size, strict=True)
            same = [step * (size - 1) // 2 for step, size in sizes]
            self.padded = same if module.padding == "same" else list(module.padding)


def readers(fixed: Compressor, removed: Sequence[int]) -> dict[str, Reader]:
    """The layers, by name."""
    gone = set(removed)
    return {layer.name: Reader(layer, fixed.model.get_submodule(layer.name), gone) for layer in fixed.topology.layers}


def match(calls: Mapping[Call, Tensor], places: Mapping[str, Sequence[CodesNode]], feeding: Feeding) -> Matches:
    """Which call of the simulation is which of the deployed network.

    Calls whose result nobody reads are not deployed. Where there are such, the deployed ones are, in their order, those
    with the fewest codes that differ.
    """
    by_reader: dict[str, list[Call]] = {}
    for call in calls:
        by_reader.setdefault(call.reader, []).append(call)
    matches: Matches = dict.fromkeys(calls)
    for reader, ours in by_reader.items():
        theirs = places.get(reader, ())
        if len(theirs) > len(ours):
            raise VerificationError(f"{reader}: called {len(theirs)} times when deployed, and {len(ours)} when trained")
        chosen = list(range(len(ours)))
        if 0 < len(theirs) < len(ours):
            chosen = _best([[feeding.difference(call, calls[call], place) for call in ours] for place in theirs])
        found = {ours[index]: place for index, place in zip(chosen, theirs, strict=False)}
        matches |= found
        for call in ours:  # called twice with one tensor, it may be either
            alike = (place for other, place in found.items() if torch.equal(calls[call], calls[other]))
            matches[call] = matches[call] or next(alike, None)
    return matches


def _best(differences: list[list[float]]) -> list[int]:
    """For each row a column, increasing from row to row, with the smallest sum."""
    columns = len(differences[0])
    best: list[tuple[float, list[int]]] = [(0.0, [])] * (columns + 1)
    """What the rows so far cost at least, with columns in front of each."""
    for row in differences:
        costs: list[tuple[float, list[int]]] = [(float("inf"), [])]
        for column, difference in enumerate(row):
            before = best[column]
            costs.append(min(costs[-1], (before[0] + difference, [*before[1], column])))
        best = costs
    return best[-1][1]


class Feeding:
    """The codes of one batch."""

    def __init__(
        self, layers: Mapping[str, Reader], values: Mapping[str, Tensor], grids: Mapping[str, Grid],
        ignored: Collection[str],
    ) -> None:  # fmt: skip
        self.values, self.grids = values, grids
        self.matches: Matches = {}
        self.missing: list[str] = []
        """Tensors that are quantized in the simulation, and that the deployed network has no codes of."""
        self._layers, self._ignored = layers, ignored
        self._aligned: dict[Call, tuple[int, Tensor]] = {}
        self._seen: set[tuple[str, str]] = set()

    def first(self, place: CodesNode) -> bool:
        """Whether a tensor is met for the first time; other calls may read it, too."""
        new = (place.tensor, place.node) not in self._seen
        self._seen.add((place.tensor, place.node))
        return new

    def places(self) -> Iterator[tuple[Call, CodesNode]]:
        """What is compared: every tensor of the deployed network once, however many layers read it."""
        seen = set()
        for call, place in self.matches.items():
            if place is not None and (place.tensor, place.node) not in seen:
                seen.add((place.tensor, place.node))
                yield call, place

    def answer(self, call: Call, x: Tensor) -> Tensor | None:
        """What a quantizer returns: the deployed codes as numbers, with zeros where channels are gone.

        Where nothing is deployed, nobody may read the answer: it is no number, which would be seen behind it. A tensor
        of zeros, and one that meets a weight of zeros, is nevertheless one.
        """
        grid = self.grids[call.tensor]
        if grid.carrier is None:
            return _clipped(grid, x) if x.dtype == torch.float64 else None
        place = self.matches.get(call)
        if place is None:
            if call.reader in self._ignored or not bool(x.any()):
                return torch.zeros_like(x)
            self.missing.append(call.tensor)
            return torch.full_like(x, torch.nan)
        numbers = self.codes(call, place, x).to(x.dtype) * torch.tensor(grid.step, dtype=x.dtype)
        where = self._channels(call, place, x)
        if where is None:
            return numbers
        return torch.zeros_like(x).index_copy_(where[0], where[1], numbers)

    def cut(self, call: Call, place: CodesNode, x: Tensor) -> Tensor:
        """Of what arrives in the simulation the channels that are left when deployed."""
        where = self._channels(call, place, x)
        return x if where is None else x.index_select(*where)

    def codes(self, call: Call, place: CodesNode, x: Tensor) -> Tensor:
        """The deployed codes, without what the layer pads by itself."""
        value = self.values[place.node].double()
        codes = torch.round(value / self.grids[place.tensor].step) if place.numbers else value
        expected = self.cut(call, place, x).shape
        layer = self._layers.get(call.reader)
        if layer is not None and codes.dim() == len(expected):
            for axis, start in enumerate(layer.padded, start=len(expected) - len(layer.padded)):
                if codes.shape[axis] > expected[axis]:
                    codes = codes.narrow(axis, start, expected[axis])
        if codes.shape != expected:
            raise VerificationError(
                f"{call.tensor}: shape {tuple(expected)} in the simulation, and {tuple(codes.shape)} deployed"
            )
        return codes

    def gone(self, call: Call, place: CodesNode, x: Tensor) -> Tensor | None:
        """What arrives in the simulation in the channels that are removed: all of it has to be zero."""
        where = self._channels(call, place, x)
        if where is None:
            return None
        rest = torch.ones(x.shape[where[0]], dtype=torch.bool)
        rest[where[1]] = False
        return x.index_select(where[0], rest.nonzero().flatten())

    def difference(self, call: Call, x: Tensor, place: CodesNode) -> float:
        """Which part of the codes differs, to tell calls apart; 1 where shapes do."""
        try:
            theirs = self.codes(call, place, x)
        except VerificationError:
            return 1.0
        return float((quantized(self.grids[call.tensor], self.cut(call, place, x)) != theirs).double().mean())

    def _channels(self, call: Call, place: CodesNode, x: Tensor) -> tuple[int, Tensor] | None:
        """The axis along which channels are gone, and the positions of those that are left."""
        layer = self._layers.get(call.reader)
        if layer is not None:
            return None if layer.kept is None else (layer.axis % x.dim(), layer.kept)
        codes = self.values[place.node]
        if codes.shape == x.shape or codes.dim() != x.dim():
            return None
        if call not in self._aligned:
            masks = {mask for reader in self._layers.values() for mask in reader.masks}
            self._aligned[call] = _aligned(self.grids[call.tensor], x, codes, masks)
        return self._aligned[call]


def _aligned(grid: Grid, x: Tensor, codes: Tensor, masks: Collection[tuple[bool, ...]]) -> tuple[int, Tensor]:
    """Which channels of an operand are left: as in one of the layers, and the one with the fewest other codes."""
    axes = [axis for axis in range(x.dim()) if x.shape[axis] != codes.shape[axis]]
    found: list[tuple[float, Tensor]] = []
    for mask in masks if len(axes) == 1 else ():
        if len(mask) == x.shape[axes[0]] and sum(mask) == codes.shape[axes[0]]:
            kept = torch.tensor(mask).nonzero().flatten()
            differing = quantized(grid, x.index_select(axes[0], kept)) != codes
            found.append((float(differing.double().mean()), kept))
    if not found:
        raise VerificationError(
            f"{grid.name}: shape {tuple(x.shape)} in the simulation, {tuple(codes.shape)} deployed, and no layer has "
            "lost as many channels"
        )
    return axes[0], min(found, key=lambda one: one[0])[1]


def quantized(grid: Grid, x: Tensor) -> Tensor:
    """The codes of numbers, divided in the type of x."""
    return round_to(grid, x / torch.tensor(grid.step, dtype=x.dtype))


def round_to(grid: Grid, steps: Tensor) -> Tensor:
    """The codes of numbers that are given in steps."""
    return torch.clamp(torch.round(steps), grid.low, grid.high).double()


def _clipped(grid: Grid, x: Tensor) -> Tensor:
    """What a tensor of more than 16 bits is in float64."""
    upper = grid.beta * EDGE
    clipped = torch.clamp(x, -upper if grid.signed else 0.0, upper)
    return torch.round(clipped / grid.step) * grid.step if grid.bits <= 24 else clipped
