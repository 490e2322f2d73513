"""Squeeze and excitation as operations on codes: QLinearGlobalAveragePool and QLinearMul of onnxruntime.

The mean of an image that a convolution reads, and the product of an image and a number for each of its channels, are
computed from codes of uint8 where a quantizer follows. Both kernels sum or multiply integers, which is exact, multiply
by one factor made of the steps, and round to the grid of the quantizer: two nodes in place of ten small ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from onnx import GraphProto, NodeProto

from bayesbits.deploy.onnx.custom_nodes import DOMAIN
from bayesbits.deploy.onnx.fast_forms import (
    FEW_CHANNELS,
    MANY_POSITIONS,
    averaged_axes,
    constants_of,
    readers_of,
    sizes_of,
)
from bayesbits.deploy.onnx.hard_swish_nodes import owner_of, rounds_to_bytes
from bayesbits.deploy.onnx.node_writer import NodeWriter
from bayesbits.deploy.onnx.symbolic_dims import example_size
from bayesbits.deploy.onnx.tensor_names import RUNTIME_DOMAIN
from bayesbits.records.integer_network import Grid, IntegerNetwork

RATIOS = (2.0**-8, 2.0**8)
"""The step of an image over that of its mean: outside of these bounds the kernel may refuse to compute a mean."""
IMAGE = 4
"""The axes of an image with channels: batch, channel, height and width."""


@dataclass(frozen=True)
class Codes:
    """A tensor of uint8 codes, and their grid."""

    name: str
    grid: Grid


@dataclass(frozen=True)
class Gated:
    """An image and the numbers for its channels, which are multiplied."""

    image: Codes
    factors: Codes
    row: int | None
    """The width of the image where a row of factors is made first, because that is faster."""


@dataclass(frozen=True)
class SqueezeExcitations:
    """The means and products of a graph that are computed from codes."""

    means: dict[str, Codes]
    """For the numbers of each mean the codes that it reads."""
    products: dict[str, Gated]
    """For the numbers of each product the codes that it reads."""
    inside: frozenset[str]
    """The tensors of numbers that are not needed then: these results, and what is computed for nothing else."""


def find_squeeze_excitations(
    graph: GraphProto, network: IntegerNetwork, symbols: Mapping[str, int]
) -> SqueezeExcitations:
    """The means and products that read codes, and that are read only by quantizers to 8 bits or fewer."""
    search = _Search(graph, network, symbols)
    means: dict[str, Codes] = {}
    products: dict[str, Gated] = {}
    inside: set[str] = set()
    for node in graph.node:
        if not search.is_only_rounded(node):
            continue
        if node.op_type == "Scale" and (image := search.averaged(node)) is not None:
            means[node.output[0]] = image
            inside.update((node.input[0], node.output[0]))
        elif node.op_type == "Mul" and (gated := search.multiplied(node)) is not None:
            products[node.output[0]] = gated
            inside.update(node.output)
    return SqueezeExcitations(means, products, frozenset(inside | search.read_only_by(inside)))


def write_mean(writer: NodeWriter, image: Codes, target: Grid, codes: str, output: str) -> None:
    """Write the nodes from the codes of an image to those of the means of its channels."""
    operands = [codes, *writer.grid_constants(image.grid), *writer.grid_constants(target)]
    node = partial(writer.add, "QLinearGlobalAveragePool", operands, domain=RUNTIME_DOMAIN, channels_last=0)
    writer.clip_codes(node, target, output, target.low, target.high, target.name)


def write_gated(writer: NodeWriter, gated: Gated, target: Grid, codes: tuple[str, str], output: str) -> None:
    """Write the nodes from the codes of an image and of a factor for each channel to those of their product."""
    image, factors = codes
    if gated.row is not None:
        sizes = writer.constant(f"row of {gated.row}", np.array([1, 1, 1, gated.row], np.int64))
        factors = writer.add("Expand", [factors, sizes], f"{output}/row")
    steps = [writer.grid_constants(grid) for grid in (gated.image.grid, gated.factors.grid, target)]
    operands = [image, *steps[0], factors, *steps[1], *steps[2]]
    node = partial(writer.add, "QLinearMul", operands, domain=RUNTIME_DOMAIN)
    writer.clip_codes(node, target, output, target.low, target.high, target.name)


class _Search:
    def __init__(self, graph: GraphProto, network: IntegerNetwork, symbols: Mapping[str, int]) -> None:
        self.graph, self.network, self.symbols = graph, network, symbols
        self.readers = readers_of(graph)
        self.producers = {name: node for node in graph.node for name in node.output}
        self.outputs = {value.name for value in graph.output}
        self.arrays, self.sizes = dict(constants_of(graph)), sizes_of(graph)

    def is_only_rounded(self, node: NodeProto) -> bool:
        """Whether quantizers to uint8 read the result of a node, and nothing else does."""
        readers = self._readers_of(node)
        return bool(readers) and all(rounds_to_bytes(reader, self.network) for reader in readers)

    def averaged(self, scale: NodeProto) -> Codes | None:
        """The codes of the image whose means a node scales; None where it scales something else.

        Convolutions read the means: in front of a linear layer a mean of float codes is as quick, and defined bit by
        bit.
        """
        mean = self.producers.get(scale.input[0])
        source = None if mean is None else self.producers.get(mean.input[0])
        if mean is None or source is None or source.op_type != "ToFloat" or self._readers_of(mean) != [scale]:
            return None
        axes, keeps = averaged_axes(mean, self.sizes, self.arrays)
        if len(self.sizes.get(source.output[0], ())) != IMAGE or sorted(axes) != [2, 3] or not keeps:
            return None
        grid, quantizers = self.network.grid(owner_of(source)), self._readers_of(scale)
        ratios = [grid.step / self.network.grid(owner_of(quantizer)).step for quantizer in quantizers]
        layers = [reader for quantizer in quantizers for reader in self._readers_of(quantizer)]
        suits = all(RATIOS[0] <= ratio < RATIOS[1] for ratio in ratios) and all(map(self._is_convolution, layers))
        return Codes(source.input[0], grid) if suits and layers else None

    def multiplied(self, product: NodeProto) -> Gated | None:
        """The codes of an image and of factors for its channels; None where a node multiplies something else."""
        shapes = [[example_size(size, self.symbols) for size in self.sizes.get(one, ())] for one in product.input]
        for index in (0, 1):
            (image, factors), names = (
                (shapes[index], shapes[1 - index]),
                (product.input[index], product.input[1 - index]),
            )
            codes = [self._dequantized(name) for name in names]
            each = len(image) == len(factors) == IMAGE and factors == [*image[:2], 1, 1] != image
            if each and codes[0] is not None and codes[1] is not None:
                few = 1 < (image[1] or 0) <= FEW_CHANNELS and (image[2] or 0) * (image[3] or 0) >= MANY_POSITIONS
                width = self.sizes[names[0]][3].dim_value  # 0 where it may change
                return Gated(codes[0], codes[1], width if few and width else None)
        return None

    def read_only_by(self, inside: set[str]) -> set[str]:
        """The dequantized tensors that are read only to compute these."""
        return {
            node.output[0]
            for node in self.graph.node
            if node.domain == DOMAIN and node.op_type in ("Dequantize", "ToFloat")
            if (readers := self._readers_of(node)) and all(inside.issuperset(reader.output) for reader in readers)
        }

    def _readers_of(self, node: NodeProto) -> list[NodeProto]:
        """The nodes that read the result of a node; none where the network returns it."""
        return [] if node.output[0] in self.outputs else self.readers.get(node.output[0], [])

    def _dequantized(self, name: str) -> Codes | None:
        """The codes of a tensor of numbers."""
        node = self.producers.get(name)
        if node is None or node.domain != DOMAIN or node.op_type != "Dequantize":
            return None
        return Codes(node.input[0], self.network.grid(owner_of(node)))

    def _is_convolution(self, node: NodeProto) -> bool:
        return node.op_type == "Layer" and self.network.layer(owner_of(node)).kind == "conv"
