"""Hard-swish between two quantizers as a product of integers: Clip and QLinearMul of onnxruntime.

The hard-swish of x is x * clip(x + 3, 0, 6) / 6. On a grid that starts at -3, 3 is n steps s (see
`nn.hard_swish_quantizer`), and a uint8 code u stands for x = (u - n) s and x + 3 = u s. So the codes of the clipped sum
are clip(u, 0, 2 n), on the same grid without a zero point, exactly: the gate is not rounded. QLinearMul multiplies both
as integers and rounds to the grid of the next layer. Clip and QLinearMul together take half of the time of
DequantizeLinear, HardSwish and QuantizeLinear, or less with several threads, as DequantizeLinear uses one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto

from bayesbits.deploy.onnx.custom_nodes import DOMAIN
from bayesbits.deploy.onnx.node_writer import NodeWriter
from bayesbits.deploy.onnx.tensor_names import RUNTIME_DOMAIN
from bayesbits.graph.hard_swish import HEIGHT, SHIFT
from bayesbits.records.integer_network import Grid, IntegerNetwork

LARGEST = 255
"""The largest code of uint8."""
ROUNDOFF = 2e-6
"""By how much, relative to 3, the steps below zero may be off: a few roundings in float32."""


@dataclass(frozen=True)
class HardSwishes:
    """The hard-swishes of a graph that are computed with integers."""

    codes: dict[str, tuple[str, Grid]]
    """For the result of each the codes that it reads, with their grid."""
    inside: frozenset[str]
    """The tensors of numbers that are not needed then: these results, and the dequantized codes."""


def find_integer_hard_swishes(graph: GraphProto, network: IntegerNetwork) -> HardSwishes:
    """The hard-swishes that read codes of a suitable grid, and are read only by quantizers to 8 bits or fewer."""
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    producers = {name: node for node in graph.node for name in node.output}
    returned = {value.name for value in graph.output}
    codes, inside = {}, set[str]()
    for node in (node for node in graph.node if node.op_type == "HardSwish"):
        source, result = producers.get(node.input[0]), node.output[0]
        if source is None or source.op_type != "Dequantize" or source.domain != DOMAIN:
            continue
        grid, behind = network.grid(owner_of(source)), readers.get(result, [])
        alone = len(readers[node.input[0]]) == 1 and not returned.intersection((result, node.input[0]))
        if alone and steps_below_zero(grid) and behind and all(rounds_to_bytes(one, network) for one in behind):
            codes[result] = source.input[0], grid
            inside |= {result, node.input[0]}
    return HardSwishes(codes, frozenset(inside))


def steps_below_zero(grid: Grid) -> int | None:
    """The number of steps from the start of a grid of uint8 to zero where it starts at -3; otherwise None."""
    steps = -grid.low
    starts = grid.carrier == "uint8" and grid.alpha is not None and grid.high - grid.low == LARGEST
    return steps if starts and abs(steps * grid.step / SHIFT - 1) <= ROUNDOFF else None


def write_hard_swish(writer: NodeWriter, source: Grid, target: Grid, codes: str, output: str) -> None:
    """Write the nodes from the codes of x to those of its hard-swish."""
    steps = steps_below_zero(source)
    assert steps is not None
    clipped = codes
    if 2 * steps < LARGEST:
        height = writer.constant(f"{source.name}.hard_swish.high", np.uint8(2 * steps))
        clipped = writer.add("Clip", [codes, "", height], f"{output}/clipped")
    factor = writer.constant(f"{source.name}.hard_swish.step", np.float32(source.step / HEIGHT))
    zero = writer.constant("no zero point", np.uint8(0))
    operands = [codes, *writer.grid_constants(source), clipped, factor, zero, *writer.grid_constants(target)]
    node = partial(writer.add, "QLinearMul", operands, domain=RUNTIME_DOMAIN)
    writer.clip_codes(node, target, output, target.low, target.high, target.name)


def rounds_to_bytes(node: NodeProto, network: IntegerNetwork) -> bool:
    """Whether a node is a quantizer whose codes are uint8."""
    is_quantizer = node.op_type == "Quantize" and node.domain == DOMAIN
    return is_quantizer and network.grid(owner_of(node)).carrier == "uint8"


def owner_of(node: NodeProto) -> str:
    """The name of the grid or layer that a custom node is of."""
    value: Any = next(attribute.s for attribute in node.attribute if attribute.name == "of")
    return str(value.decode())
