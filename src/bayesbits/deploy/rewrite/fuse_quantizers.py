"""Quantizers are fused into the layers in front of them, so that a layer emits codes.

Rounding to a grid is monotone: it can change places with a maximum, with clipping and with every operation that only
moves data. So a quantizer behind `layer -> ReLU -> max-pool -> flatten` moves in front of all three. Max-pool and
flatten then work on codes, the ReLU becomes a bound of the codes, and the layer requantizes its sums itself. Sums of
codes are exact in any order, so numbers that are only averaged are averaged as codes. Numbers that are interpolated are
interpolated as codes for the same reason: between two codes, their middle is common, and there the last bit of a sum
would decide about the next quantizer's code.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import torch
from torch import fx

from bayesbits.deploy.modules import DEQUANTIZERS, QUANTIZERS, target_of
from bayesbits.deploy.rewrite.program import EmittedCodes, LayerNode, ProductNode, RewrittenProgram
from bayesbits.graph.exported_program import operation
from bayesbits.graph.operations import AVERAGES, CLIPS, INTERPOLATIONS, clip_bounds, moves_values, pads_zeros
from bayesbits.records.integer_network import Grid


def fuse_quantizers(program: RewrittenProgram) -> None:
    """Fuse quantizers into layers, and write down for each layer the codes that it emits."""
    by_target = {
        target_of(QUANTIZERS, name): grid for name, grid in program.decision.grids.items() if grid.carrier == "uint8"
    }  # integer kernels emit no wider codes
    entries: list[LayerNode | ProductNode] = [entry for entry in program.layers if not entry.dynamic]
    entries += program.products
    emitters = {call: entry for entry in entries if entry.float_reason is None for call in entry.calls}
    dequantizers = {target_of(DEQUANTIZERS, name): grid for name, grid in program.decision.grids.items()}
    fusions = []
    for node in program.graph.nodes:
        if node.op == "call_module" and node.target in by_target:
            fusion = _Fusion(node, by_target[node.target], emitters, dequantizers)
            fusions += [fusion] if fusion.found else []
    for fusion in _of_all_calls(fusions, emitters):
        fusion.apply()
        for call, codes in fusion.emits.items():
            emitters[call].emits = codes
    _pad_codes(program.graph, by_target)
    _average_codes(program.graph)
    program.erase_unread()


def _of_all_calls(fusions: list[_Fusion], emitters: Mapping[fx.Node, LayerNode | ProductNode]) -> list[_Fusion]:
    """The fusions without those of layers of which some calls emit no codes, or others: a layer emits one kind."""
    while True:
        emits = {call: codes for fusion in fusions for call, codes in fusion.emits.items()}
        whole = [fusion for fusion in fusions if all(_alike(emitters[call], emits) for call in fusion.emits)]
        if len(whole) == len(fusions):
            return whole
        fusions = whole


def _alike(entry: LayerNode | ProductNode, emits: Mapping[fx.Node, EmittedCodes]) -> bool:
    return len({emits.get(call) for call in entry.calls}) == 1


class _Fusion:
    """The search from one quantizer upstream for the layers that feed it."""

    def __init__(
        self, quantizer: fx.Node, grid: Grid, emitters: Container[fx.Node], dequantizers: Mapping[str, Grid]
    ) -> None:
        self.quantizer, self.grid, self.emitters, self.dequantizers = quantizer, grid, emitters, dequantizers
        self.emits: dict[fx.Node, EmittedCodes] = {}
        """The calls of the layers and products that were reached, with the codes that they would emit."""
        self.clips: list[fx.Node] = []
        """The clipping operations that were passed; they become bounds of the codes."""
        self.dequantized: list[tuple[fx.Node, fx.Node]] = []
        """The dequantizers of an equal grid that were reached, each behind its reader: that takes their codes."""
        codes = EmittedCodes(grid.name, grid.low, grid.high)
        self.found = self.follow(quantizer.args[0], codes, quantizer)
        """Whether all that feeds the quantizer can emit its codes."""

    def apply(self) -> None:
        """Take the quantizer and what it has passed out of the graph."""
        for reader, numbers in self.dequantized:
            reader.replace_input_with(numbers, numbers.all_input_nodes[0])
        for absorbed in (*self.clips, self.quantizer):
            absorbed.replace_all_uses_with(absorbed.all_input_nodes[0])

    def follow(self, node: Any, codes: EmittedCodes, reader: fx.Node) -> bool:
        """Search upstream of a node that would make these codes; False where the quantizer cannot pass an operation."""
        assert isinstance(node, fx.Node)
        if node.op == "call_module" and node.target in self.dequantizers:
            own = self.dequantizers[str(node.target)]
            self.dequantized.append((reader, node))
            return own.same_codes(self.grid) and (codes.low, codes.high) == (self.grid.low, self.grid.high)
        if len(node.users) != 1:
            return False
        if node in self.emitters:
            self.emits[node] = codes
            return True
        if node.op != "call_function":
            return False
        name = operation(node)
        if name in CLIPS:
            bounds = clip_bounds(node)
            if bounds is None:
                return False
            self.clips.append(node)
            low, high = (min(max(code, codes.low), codes.high) for code in _codes_of(bounds, self.grid))
            return self.follow(node.args[0], EmittedCodes(self.grid.name, low, high), node)
        if name == "cat":
            parts: Any = node.args[0]
            return all(self.follow(part, codes, node) for part in parts)
        return moves_values(node) and self.follow(node.args[0], codes, node)


def _codes_of(bounds: tuple[float, float], grid: Grid) -> tuple[int, int]:
    """The codes of two numbers, which may be infinite."""
    codes = torch.round(torch.tensor(bounds) / torch.tensor(grid.step)).clamp(grid.low, grid.high)
    return int(codes[0]), int(codes[1])


def _pad_codes(graph: fx.Graph, quantizers: Container[object]) -> None:
    """Move quantizers in front of padding with zeros, which a convolution can then do itself."""
    for node in list(graph.nodes):
        while node.op == "call_module" and node.target in quantizers:
            padding = node.all_input_nodes[0]
            if padding.op != "call_function" or len(padding.users) != 1 or not pads_zeros(padding):
                break
            node.replace_all_uses_with(padding, delete_user_cb=lambda reader, own=padding: reader is not own)
            node.replace_input_with(padding, padding.all_input_nodes[0])
            padding.replace_input_with(padding.all_input_nodes[0], node)
            padding.prepend(node)


def _average_codes(graph: fx.Graph) -> None:
    """Move averages and interpolations in front of the dequantization of the tensor that they read."""
    for node in list(graph.nodes):
        if node.op != "call_module" or not str(node.target).startswith(f"{DEQUANTIZERS}."):
            continue
        for user in list(node.users):
            name = operation(user) if user.op == "call_function" else ""
            if AVERAGES.fullmatch(name) or INTERPOLATIONS.fullmatch(name):
                with graph.inserting_after(user):
                    numbers = graph.call_module(str(node.target), (user,))
                user.replace_all_uses_with(numbers, delete_user_cb=lambda reader, own=numbers: reader is not own)
                user.replace_input_with(node, node.args[0])
