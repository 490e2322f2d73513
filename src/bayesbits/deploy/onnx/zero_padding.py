"""Padding with zeros in front of a max-pooling, kept as a node of its own.

onnxruntime makes padding by the constant zero a part of the pooling behind it. A max-pooling ignores its padding, so
that a border of zeros beside negative numbers would be lost. The runtime leaves the padding alone where the pooling has
`auto_pad`, which is "VALID" for one without padding of its own; in front of others a maximum with the lowest number,
which changes nothing, keeps the two apart. Unsigned codes need neither: none is below zero.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

LOWEST = "lowest number"


def keep_zero_padding(model: ModelProto) -> None:
    """Write every max-pooling behind a padding of numbers so that the runtime does not combine the two, in place."""
    graph = model.graph
    codes = {value.name for value in graph.value_info if value.type.tensor_type.elem_type == TensorProto.UINT8}
    padded = {node.output[0] for node in graph.node if node.op_type == "Pad"} - codes
    written = [new for node in graph.node for new in _kept_apart(node, padded)]
    if any(LOWEST in node.input for node in written):
        graph.initializer.append(numpy_helper.from_array(np.asarray(np.finfo(np.float32).min), LOWEST))
    del graph.node[:]
    graph.node.extend(written)


def _kept_apart(node: NodeProto, padded: set[str]) -> Iterator[NodeProto]:
    """A node, or in place of a max-pooling behind a padding the nodes that the runtime does not combine with it."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type == "MaxPool" and node.input[0] in padded:
        automatic = "auto_pad" in attributes and attributes["auto_pad"].s != b"NOTSET"
        if not automatic and "pads" in attributes and any(attributes["pads"].ints):
            apart = f"{node.output[0]}/padded"
            yield helper.make_node("Max", [node.input[0], LOWEST], [apart], name=apart)
            node.input[0] = apart
        elif not automatic:
            kept = [attribute for name, attribute in attributes.items() if name not in ("auto_pad", "pads")]
            kept.append(helper.make_attribute("auto_pad", "VALID"))
            del node.attribute[:]
            node.attribute.extend(kept)
    yield node
