"""Padding with zeros in front of a pooling, kept as a node of its own where the two together would be something else.

onnxruntime makes padding by the constant zero a part of the pooling behind it. A max-pooling ignores its padding, so
that a border of zeros beside negative numbers would be lost; unsigned codes need no care, as none is below zero. And
the runtime refuses a pooling that is padded by as much as its kernel or more, also where it made it so itself. The
padding stays where the pooling has `auto_pad`, which is "VALID" for one without padding of its own; before others a
maximum with the lowest number, or a clip of codes at zero, which change nothing, keep the two apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

LOWEST, LOWEST_CODE = "lowest number", "lowest code"


def keep_zero_padding(model: ModelProto) -> None:
    """Write every pooling behind a padding that the runtime must not combine with it so that it does not, in place."""
    graph = model.graph
    codes = {value.name for value in graph.value_info if value.type.tensor_type.elem_type == TensorProto.UINT8}
    stored = {entry.name: entry for entry in graph.initializer}
    padded = {node.output[0]: _amounts(node, stored) for node in graph.node if node.op_type == "Pad"}
    written = [new for node in graph.node for new in _kept_apart(node, padded, codes)]
    for name, value in ((LOWEST, np.finfo(np.float32).min), (LOWEST_CODE, np.uint8(0))):
        if any(name in node.input for node in written):
            graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    del graph.node[:]
    graph.node.extend(written)


def _kept_apart(node: NodeProto, padded: Mapping[str, list[int] | None], codes: set[str]) -> Iterator[NodeProto]:
    """A node, or in place of a pooling behind a padding the nodes that the runtime does not combine with it."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    source = node.input[0] if node.op_type in ("MaxPool", "AveragePool") else ""
    if source in padded:
        loses_zeros = node.op_type == "MaxPool" and source not in codes
        automatic = "auto_pad" in attributes and attributes["auto_pad"].s != b"NOTSET"
        if not automatic and (loses_zeros or _exceeds_kernel(padded[source], attributes)):
            if "pads" in attributes and any(attributes["pads"].ints):
                apart = f"{node.output[0]}/padded"
                kind, lowest = ("Clip", LOWEST_CODE) if source in codes else ("Max", LOWEST)
                yield helper.make_node(kind, [source, lowest], [apart], name=apart)
                node.input[0] = apart
            else:
                kept = [attribute for name, attribute in attributes.items() if name not in ("auto_pad", "pads")]
                kept.append(helper.make_attribute("auto_pad", "VALID"))
                del node.attribute[:]
                node.attribute.extend(kept)
    yield node


def _amounts(node: NodeProto, stored: Mapping[str, TensorProto]) -> list[int] | None:
    """By how much a tensor is padded at the start and at the end of every axis; None where that is computed."""
    entry = stored.get(node.input[1])
    return None if entry is None else [int(amount) for amount in numpy_helper.to_array(entry)]


def _exceeds_kernel(amounts: list[int] | None, attributes: Mapping[str, AttributeProto]) -> bool:
    """Whether a padding and a pooling's own reach as far as its kernel; also where it is not known."""
    kernel = list(attributes["kernel_shape"].ints)
    if amounts is None or len(amounts) != 2 * (len(kernel) + 2):
        return True
    own = list(attributes["pads"].ints) if "pads" in attributes else [0] * 2 * len(kernel)
    ahead, behind = amounts[2 : len(kernel) + 2], amounts[len(kernel) + 4 :]
    return any(pad + more >= size for pad, more, size in zip(ahead + behind, own, kernel * 2, strict=True))
