"""Attention whose mask hides everything from a query: zeros in the ONNX file, as in torch.

Scaled dot-product attention computes zeros for such a row. torch translates it as a softmax over scores plus a mask,
whose NaN become zeros, but writes the lowest finite number into the mask in place of minus infinity: the softmax over
equal numbers then is the same probability for every hidden position, and the row the mean of all values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, numpy_helper

HIDDEN = "hidden"
LOWEST = float(np.finfo(np.float32).min)


def hide_by_infinity(model: ModelProto) -> None:
    """Write minus infinity into the masks of attention whose NaN become zeros, in place."""
    made = {name: node for node in model.graph.node for name in node.output}
    lowest = {entry.name for entry in model.graph.initializer if _is_lowest(numpy_helper.to_array(entry))}
    masks = [mask for node in model.graph.node for mask in _masks(node, made) if mask.input[2] in lowest]
    for mask in masks:
        mask.input[2] = HIDDEN
    if masks:
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(-np.inf, np.float32), HIDDEN))


def _masks(node: NodeProto, made: dict[str, NodeProto]) -> Iterator[NodeProto]:
    """The masks, chosen by Where, that are added to the scores of a softmax whose NaN this node looks for."""
    softmax = made.get(node.input[0]) if node.op_type == "IsNaN" else None
    added = made.get(softmax.input[0]) if softmax is not None and softmax.op_type == "Softmax" else None
    if added is not None and added.op_type == "Add":
        yield from (made[name] for name in added.input if name in made and made[name].op_type == "Where")


def _is_lowest(values: NDArray[Any]) -> bool:
    return values.dtype == np.float32 and values.size == 1 and float(values.reshape(())) == LOWEST
