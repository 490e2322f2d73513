"""The deployed network's codes in the shapes of the simulation's tensors, so that its quantizers can return them.

Three things differ between the two networks: the deployed one lacks the removed channels, it pads in front of a layer
where the simulation's layer pads itself, and it does not make calls whose result nothing reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesbits.compression.compressor import Compressor
from bayesbits.deploy.verification.deployed_program import CodesNode
from bayesbits.deploy.verification.differences import count_true
from bayesbits.deploy.verification.dynamic_inputs import DynamicInput, quantize_dynamically
from bayesbits.deploy.verification.result import VerificationError
from bayesbits.deploy.verification.simulation import QuantizerCall
from bayesbits.functional.grid import EDGE
from bayesbits.nn.weight_product import find_layer
from bayesbits.records.integer_network import Grid
from bayesbits.records.topology import Layer, Topology

Matches = dict[QuantizerCall, CodesNode | None]
"""For every call of a quantizer the node with its deployed codes; None where there is none."""


class LayerInput:
    """How the input of a layer in the simulation differs from its input when deployed."""

    def __init__(self, layer: Layer, module: Any, removed: Collection[int]) -> None:
        spatial = 0 if layer.kind == "linear" else len(layer.weight_shape) - 2
        self.axis = -1 - spatial
        kept = [index for index, channel in enumerate(layer.in_channels) if channel not in removed]
        self.kept = None if len(kept) == len(layer.in_channels) else torch.tensor(kept, dtype=torch.int64)
        self.masks = {
            tuple(channel not in removed for channel in channels)
            for channels in (layer.in_channels, layer.out_channels)
        }
        """For the input and the output of the layer, which channels are kept."""
        self.padding = [0] * spatial
        """How much is padded in front, on every spatial axis, where padding is deployed as an operation of its own."""
        if getattr(module, "padding_mode", "zeros") != "zeros" and module.padding != "valid":
            sizes = zip(module.dilation, module.kernel_size, strict=True)
            same = [step * (size - 1) // 2 for step, size in sizes]
            self.padding = same if module.padding == "same" else list(module.padding)


def describe_layer_inputs(fixed: Compressor, removed: Collection[int]) -> dict[str, LayerInput]:
    """The inputs of all layers, by the layer's name."""
    removed, model = set(removed), fixed.model
    return {layer.name: LayerInput(layer, find_layer(model, layer.name), removed) for layer in fixed.topology.layers}


def describe_heads(topology: Topology, removed: Collection[int]) -> dict[str, tuple[bool, ...]]:
    """For the operands of products that lose heads, which heads are kept, by the tensor's name."""
    lost = {tensor: product for tensor, product in topology.product_tensors.items() if {*product.slices} & {*removed}}
    return {tensor: tuple(one not in removed for one in product.slices) for tensor, product in lost.items()}


def match_calls(
    calls: Mapping[QuantizerCall, Tensor], nodes: Mapping[str, Sequence[CodesNode]], deployed: DeployedCodes
) -> Matches:
    """Which node of the deployed program holds the codes of which call of the simulation, given the calls' inputs.

    Calls whose result nothing reads are not deployed. Where a layer has such calls, those with the fewest differing
    codes are matched, in their order.
    """
    by_reader: dict[str, list[QuantizerCall]] = {}
    for call in calls:
        by_reader.setdefault(call.reader, []).append(call)
    matches: Matches = dict.fromkeys(calls)
    for reader, ours in by_reader.items():
        theirs = nodes.get(reader, ())
        if len(theirs) > len(ours):
            raise VerificationError(f"{reader}: called {len(theirs)} times when deployed, and {len(ours)} when trained")
        chosen = list(range(len(ours)))
        if 0 < len(theirs) < len(ours):
            shares = [[deployed.differing_share(call, calls[call], node) for call in ours] for node in theirs]
            chosen = _smallest_increasing(shares)
        found = {ours[index]: node for index, node in zip(chosen, theirs, strict=False)}
        matches |= found
        for call in ours:  # two calls with equal inputs are deployed as one
            alike = (node for other, node in found.items() if torch.equal(calls[call], calls[other]))
            matches[call] = matches[call] or next(alike, None)
    return matches


def _smallest_increasing(rows: list[list[float]]) -> list[int]:
    """A column for each row, increasing from row to row, with the smallest sum of entries."""
    best: list[tuple[float, list[int]]] = [(0.0, [])] * (len(rows[0]) + 1)
    """For every number of columns the smallest sum of the rows so far in these columns, and the choice."""
    for row in rows:
        sums: list[tuple[float, list[int]]] = [(float("inf"), [])]
        for column, entry in enumerate(row):
            before = best[column]
            sums.append(min(sums[-1], (before[0] + entry, [*before[1], column])))
        best = sums
    return best[-1][1]


class DeployedCodes:
    """The codes of one batch.

    Args:
        layers: The inputs of the layers.
        values: The values of nodes of the deployed program, by the node's name.
        grids: The grids, by the tensor's name.
        zero_layers: Layers whose weight is zero, so that their input does not matter.
        matches: The node of every call; empty before calls are matched.
        only_as_codes: Operands whose readers all quantize to an equal grid.
        heads: For the operands of products that are computed head by head, which heads are kept, by the tensor's name.
    """

    def __init__(
        self, layers: Mapping[str, LayerInput], values: Mapping[str, Tensor], grids: Mapping[str, Grid],
        zero_layers: Collection[str], matches: Matches, only_as_codes: Collection[str] = (),
        heads: Mapping[str, tuple[bool, ...]] | None = None,
    ) -> None:  # fmt: skip
        self.values, self.grids, self.matches = values, grids, matches
        self.missing: list[str] = []
        """Tensors that are quantized in the simulation, without codes in the deployed network."""
        self._layers, self._zero_layers, self._only_as_codes = layers, zero_layers, only_as_codes
        self._heads = heads or {}
        self._dynamic: dict[str, DynamicInput] = {}
        self.operand_channels: dict[QuantizerCall, tuple[int, Tensor]] = {}
        """The axis and the kept channels of operands, found by comparing values; equal values could not tell them."""
        self._seen: set[tuple[str, str]] = set()

    def prepare(self, nodes: Iterable[CodesNode]) -> None:
        """Quantize the inputs that have their range at run time alone, before anything is computed in float64."""
        for node in nodes:
            if node.dynamic and node.node not in self._dynamic:
                self._dynamic[node.node] = quantize_dynamically(node.tensor, self.values[node.node])

    def grid(self, node: CodesNode) -> Grid:
        """The grid of a node's codes; it is that of this batch where an input is quantized at run time."""
        return self._dynamic[node.node].grid if node.dynamic else self.grids[node.tensor]

    def is_first(self, node: CodesNode) -> bool:
        """Whether this is asked for a node's codes for the first time; several calls may read them."""
        new = (node.tensor, node.node) not in self._seen
        self._seen.add((node.tensor, node.node))
        return new

    def matched(self) -> Iterator[tuple[QuantizerCall, CodesNode]]:
        """Every node with codes once, with the first call that reads them."""
        seen = set()
        for call, node in self.matches.items():
            if node is not None and (node.tensor, node.node) not in seen:
                seen.add((node.tensor, node.node))
                yield call, node

    def replacement(self, call: QuantizerCall, x: Tensor) -> Tensor | None:
        """The output of a quantizer of the simulation: the deployed codes times their step, zero in removed channels.

        Where the deployed network has no such codes, nothing may read the output: it is NaN, which would show in every
        tensor computed from it. Inputs of zeros, and inputs of layers with a weight of zeros, become zeros. An operand
        whose readers all quantize to an equal grid is not rounded here, so that each of them is compared itself.
        """
        known = self.grids.get(call.tensor)  # none where it is quantized at run time
        if known is not None and known.carrier is None:
            return _clipped(known, x) if x.dtype == torch.float64 else None
        node = self.matches.get(call)
        if node is None:
            if call.tensor in self._only_as_codes:
                return x
            if call.reader in self._zero_layers or not bool(x.any()):
                return torch.zeros_like(x)
            self.missing.append(call.tensor)
            return torch.full_like(x, torch.nan)
        numbers = self.codes(call, node, x).to(x.dtype) * torch.tensor(self.grid(node).step, dtype=x.dtype)
        kept = self._kept_channels(call, node, x)
        if kept is None:
            return numbers
        return torch.zeros_like(x).index_copy_(kept[0], kept[1], numbers)

    def kept(self, call: QuantizerCall, node: CodesNode, x: Tensor) -> Tensor:
        """The channels of a quantizer's input in the simulation that are kept when deployed."""
        kept = self._kept_channels(call, node, x)
        return x if kept is None else x.index_select(*kept)

    def removed(self, call: QuantizerCall, node: CodesNode, x: Tensor) -> Tensor | None:
        """The channels of a quantizer's input in the simulation that are removed when deployed: they must be zero.

        None where none are, and for operands of products: what is zero of a removed head is its result alone.
        """
        kept = self._kept_channels(call, node, x)
        if kept is None or call.tensor in self._heads:
            return None
        rest = torch.ones(x.shape[kept[0]], dtype=torch.bool)
        rest[kept[1]] = False
        return x.index_select(kept[0], rest.nonzero().flatten())

    def codes(self, call: QuantizerCall, node: CodesNode, x: Tensor) -> Tensor:
        """The deployed codes, without padding that the simulation's layer adds itself."""
        codes = self._dynamic[node.node].code_tensor if node.dynamic else self.values[node.node]
        if node.scaled:
            codes = torch.round(codes.double() / self.grids[node.tensor].step)
        expected = self.kept(call, node, x).shape
        layer = self._layers.get(call.reader)
        if layer is not None and codes.dim() == len(expected):
            for axis, start in enumerate(layer.padding, start=len(expected) - len(layer.padding)):
                if codes.shape[axis] > expected[axis]:
                    codes = codes.narrow(axis, start, expected[axis])
        if codes.shape != expected:
            raise VerificationError(
                f"{call.tensor}: shape {tuple(expected)} in the simulation, and {tuple(codes.shape)} deployed"
            )
        return codes

    def differing_share(self, call: QuantizerCall, x: Tensor, node: CodesNode) -> float:
        """The share of codes that differ between a call and a node; 1 where the shapes differ."""
        try:
            theirs = self.codes(call, node, x)
        except VerificationError:
            return 1.0
        return float((quantize(self.grid(node), self.kept(call, node, x)) != theirs).double().mean())

    def _kept_channels(self, call: QuantizerCall, node: CodesNode, x: Tensor) -> tuple[int, Tensor] | None:
        """The axis of channels and the indices of the kept ones; None where no channel is removed."""
        layer = self._layers.get(call.reader)
        if layer is not None:
            return None if layer.kept is None else (layer.axis % x.dim(), layer.kept)
        codes = self.values[node.node]
        if codes.shape == x.shape or codes.dim() != x.dim():
            return None
        if call.tensor in self._heads:
            return _kept_heads(self._heads[call.tensor], x.shape, codes.shape)
        if call not in self.operand_channels:
            masks = {mask for layer in self._layers.values() for mask in layer.masks}
            self.operand_channels[call] = _find_kept_channels(self.grids[call.tensor], x, codes, masks)
        return self.operand_channels[call]


def _kept_heads(heads: tuple[bool, ...], before: Sequence[int], behind: Sequence[int]) -> tuple[int, Tensor] | None:
    """The axis of heads and the indices of the kept ones, from the shapes with and without the removed ones.

    Where heads and batch are one axis, the heads are repeated for each example of a batch of any size.
    """
    axes = [axis for axis, (whole, left) in enumerate(zip(before, behind, strict=True)) if whole != left]
    if len(axes) != 1:
        return None
    size, count = before[axes[0]], len(heads)
    period = next(step for step in range(1, count + 1) if count % step == 0 and heads == heads[:step] * (count // step))
    kept = torch.tensor(heads[:period]).repeat(-(-size // period))[:size].nonzero().flatten()
    return axes[0], kept


def _find_kept_channels(
    grid: Grid, x: Tensor, codes: Tensor, masks: Collection[tuple[bool, ...]]
) -> tuple[int, Tensor]:
    """The kept channels of an operand of additions: those of some layer, without which the fewest numbers are lost, and
    with the fewest codes that differ. Codes alone do not tell them: all may be zero."""
    axes = [axis for axis in range(x.dim()) if x.shape[axis] != codes.shape[axis]]
    found: list[tuple[int, float, Tensor]] = []
    for mask in masks if len(axes) == 1 else ():
        if len(mask) == x.shape[axes[0]] and sum(mask) == codes.shape[axes[0]]:
            kept, removed = (torch.tensor(mask).eq(which).nonzero().flatten() for which in (True, False))
            differing = quantize(grid, x.index_select(axes[0], kept)) != codes
            lost = count_true(x.index_select(axes[0], removed))
            found.append((lost, float(differing.double().mean()), kept))
    if not found:
        raise VerificationError(
            f"{grid.name}: shape {tuple(x.shape)} in the simulation, {tuple(codes.shape)} deployed, and no layer has "
            "lost as many channels"
        )
    return axes[0], min(found, key=lambda one: one[:2])[2]


def quantize(grid: Grid, x: Tensor) -> Tensor:
    """The codes of numbers, divided by the step in the dtype of x."""
    return round_to_codes(grid, x / torch.tensor(grid.step, dtype=x.dtype))


def round_to_codes(grid: Grid, steps: Tensor) -> Tensor:
    """The codes of numbers that are given as multiples of the step, in place."""
    return steps.round_().clamp_(grid.low, grid.high)


def _clipped(grid: Grid, x: Tensor) -> Tensor:
    """The values of a tensor of more than 16 bits, in float64."""
    if grid.alpha is not None:
        clipped = torch.clamp(x, grid.alpha, grid.beta)
    else:
        upper = grid.beta * EDGE
        clipped = torch.clamp(x, -upper if grid.signed else 0.0, upper)
    return torch.round(clipped / grid.step).clamp(grid.low, grid.high) * grid.step if grid.bits <= 24 else clipped
