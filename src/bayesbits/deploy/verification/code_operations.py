"""The constants of operations that read codes and give codes: hard-swish, and the two of squeeze and excitation.

Their kernels read the steps and zero points of all grids between which they compute. Each has to be that of the codes
which are really read there: a wrong zero point need not show on the inputs of a verification.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from onnx import NodeProto

from bayesbits.deploy.onnx.hard_swish_nodes import LARGEST, steps_below_zero
from bayesbits.deploy.onnx.tensor_names import MappedTensor
from bayesbits.deploy.verification.result import VerificationError
from bayesbits.records.integer_network import Grid, IntegerNetwork

PRODUCT, MEAN = "QLinearMul", "QLinearGlobalAveragePool"
ON_CODES = frozenset((PRODUCT, MEAN))
"""The operations of the runtime that these are written as."""

Producers = Mapping[str, NodeProto]


def operation_on_codes(value: str, producers: Producers) -> NodeProto | None:
    """The operation whose codes a quantizer gives; None where it rounds numbers."""
    node = producers.get(value)
    while node is not None and node.op_type == "Clip":
        node = producers.get(node.input[0])
    return node if node is not None and node.op_type in ON_CODES else None


def clip_of_hard_swish(node: NodeProto, producers: Producers) -> NodeProto | None:
    """The Clip of the codes that a product multiplies with themselves; None where it multiplies others."""
    clip = producers.get(node.input[3]) if node.op_type == PRODUCT else None
    return clip if clip is not None and clip.op_type == "Clip" and clip.input[0] == node.input[0] else None


def constants_in_front(
    node: NodeProto, producers: Producers, tensors: Collection[MappedTensor], network: IntegerNetwork
) -> set[str]:
    """The constants that belong to what an operation reads; those of the grid that it rounds to are left out."""
    grids = _grids(tensors, network)
    if node.op_type == PRODUCT and (node.input[3] == node.input[0] or clip_of_hard_swish(node, producers)):
        return _constants_of_hard_swish(node, grids)
    operands = [node.input[:2], node.input[3:5]] if node.op_type == PRODUCT else [node.input[:2]]
    return {
        f"{grid}.{what}"
        for codes, step in operands
        for grid in _read_grids(codes, step.removesuffix(".step"), producers, grids, network)
        for what in ("step", "zero_point")
    }


def _grids(tensors: Collection[MappedTensor], network: IntegerNetwork) -> dict[str, Grid]:
    """The grids of all tensors of codes in the map, by the tensor's name in the file."""
    emitted = {part.name: part.output for part in network.parts}
    names = {one.value: one.of if one.kind == "Quantize" else emitted.get(one.of) for one in tensors}
    return {value: network.grid(name) for value, name in names.items() if name is not None}


def _constants_of_hard_swish(product: NodeProto, grids: Mapping[str, Grid]) -> set[str]:
    grid = grids.get(product.input[0])
    steps = None if grid is None else steps_below_zero(grid)
    if grid is None or steps is None:
        raise VerificationError(f"{product.output[0]}: the ONNX file multiplies codes that no hard-swish reads")
    parts = ["step", "zero_point", "hard_swish.step", *(["hard_swish.high"] if 2 * steps < LARGEST else [])]
    return {"no zero point", *(f"{grid.name}.{part}" for part in parts)}


def _read_grids(
    codes: str, named: str, producers: Producers, grids: Mapping[str, Grid], network: IntegerNetwork
) -> Iterator[str]:
    """The names of the grids that codes are of: the one that is named, wherever it has the same codes."""
    known = {grid.name: grid for grid in network.structure.grids}
    waiting, seen = [codes], set[str]()
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in grids:
            same = named in known and known[named].same_codes(grids[value])
            yield named if same else grids[value].name
        elif value in producers:
            waiting += producers[value].input
