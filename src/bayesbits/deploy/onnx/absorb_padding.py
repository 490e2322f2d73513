"""The last step of the export: padding with zeros in front of a convolution becomes padding of the convolution.

Networks that pad more on one side than on the other have an operation of its own for that, which copies the tensor. A
convolution of ONNX has a padding for each side, with the same result.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import GraphProto, NodeProto, numpy_helper


def absorb_padding(graph: GraphProto) -> None:
    """Make every padding with zeros that one convolution alone reads a part of that convolution, in place."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    outputs = {value.name for value in graph.output}
    absorbed = set()
    for pad in graph.node:
        reader = _only_reader(pad, readers, outputs) if pad.op_type == "Pad" else None
        if reader is None or reader.op_type not in ("DequantizeLinear", "ConvInteger"):
            continue
        convolution = reader if reader.op_type == "ConvInteger" else _only_reader(reader, readers, outputs)
        if convolution is None or convolution.op_type not in ("Conv", "ConvInteger"):
            continue
        sides = _sides(pad, reader.input[2], constants)
        own = next((attribute.ints for attribute in convolution.attribute if attribute.name == "pads"), None)
        if sides is not None and own is not None and len(own) == len(sides):
            own[:] = [mine + more for mine, more in zip(own, sides, strict=True)]
            reader.input[0] = pad.input[0]
            absorbed.add(pad.output[0])
    kept = [node for node in graph.node if node.output[0] not in absorbed]
    del graph.node[:]
    graph.node.extend(kept)


def _sides(pad: NodeProto, zero_point: str, constants: Mapping[str, np.ndarray]) -> list[int] | None:
    """How much each side of the height, the width and so on is padded; None where it is not padded with zeros alone."""
    mode = next((attribute.s for attribute in pad.attribute if attribute.name == "mode"), b"constant")
    amounts, value, zero = (constants.get(name) for name in (*pad.input[1:3], zero_point))
    if mode != b"constant" or len(pad.input) != 3 or amounts is None or value is None or zero is None:
        return None
    before, after = np.split(amounts, 2)
    outside = [*before[:2], *after[:2]]  # batch and channels
    if any(outside) or (amounts < 0).any() or value.size != 1 or zero.size != 1 or value.item() != zero.item():
        return None
    return [int(amount) for amount in (*before[2:], *after[2:])]


def _only_reader(node: NodeProto, readers: Mapping[str, list[NodeProto]], outputs: set[str]) -> NodeProto | None:
    """The one node that reads a node's result; None where there are several, or where the network returns it."""
    found = readers.get(node.output[0], []) if node.output else []
    return found[0] if len(found) == 1 and node.output[0] not in outputs else None
