"""The codes of a weight in groups as an ONNX file holds them, read again by the definition of MatMulNBits.

This is independent of the code that packs them. The options of the node are part of what is proven: sizes, the width of
the codes, and the accuracy level. At level 1 products are computed in float32. At level 4 the runtime rounds every
block of activations to 8 bits, with a step of its largest magnitude / 127, so that each activation is off by at most
half of that. A product is then off by at most

    sum over blocks of  max |x| / 254 * sum |w|
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from onnx import NodeProto
from torch import Tensor

from bayesbits.deploy.verification.result import VerificationError
from bayesbits.records.integer_network import IntegerLayer

Array = NDArray[Any]

FLOAT32_LEVEL, INT8_LEVEL = 1, 4
HALF_STEPS, ROUNDING = 254, 1.01
"""The largest magnitude of a block in half steps, and a margin for the rounding of the step itself."""


def unpack_blocks(layer: IntegerLayer, packed: Array, node: NodeProto) -> Array:
    """The codes [outputs, inputs] of a layer; raises where the options of its node are not those of the layer."""
    found = {attribute.name: attribute.i for attribute in node.attribute}
    outputs, inputs = layer.weight_shape
    wanted = {"N": outputs, "K": inputs, "block_size": layer.group_size}
    for name, value in wanted.items():
        if found.get(name) != value:
            raise VerificationError(
                f"{layer.name}: {name} of its {node.op_type} is {found.get(name)} in the ONNX file, and {value} in the "
                "deployed network"
            )
    if found.get("accuracy_level") not in (FLOAT32_LEVEL, INT8_LEVEL):
        raise VerificationError(
            f"{layer.name}: the accuracy level of its {node.op_type} is {found.get('accuracy_level')} in the ONNX "
            f"file, and not {FLOAT32_LEVEL} or {INT8_LEVEL}"
        )
    if len(node.input) != 3:
        raise VerificationError(f"{layer.name}: its {node.op_type} reads other tensors than input, codes and steps")
    bits = found["bits"]
    each_bit = np.unpackbits(packed.reshape(outputs, -1, 1), axis=-1, bitorder="little").reshape(outputs, -1, bits)
    codes = each_bit.astype(np.int64) @ (1 << np.arange(bits)) - 2 ** (bits - 1)
    if (codes[:, inputs:] != 0).any():
        raise VerificationError(f"{layer.name}: its last group of inputs is not filled up with zeros in the ONNX file")
    return np.asarray(codes[:, :inputs])


def rounds_activations(node: NodeProto) -> bool:
    """Whether a node multiplies weights in groups with activations that it rounds to 8 bits."""
    return any(attribute.name == "accuracy_level" and attribute.i == INT8_LEVEL for attribute in node.attribute)


def activation_error(layer: IntegerLayer, codes: Tensor, steps: Tensor, x: Tensor) -> Tensor:
    """How far the products of a layer may be off where its activations x are rounded to 8 bits block by block."""
    size = layer.group_size
    assert size is not None
    missing = steps.shape[1] * size - codes.shape[1]
    blocks = _split(F.pad(x.double().abs(), (0, missing)), size).amax(-1)
    sums = _split(F.pad(codes.double().abs(), (0, missing)), size).sum(-1) * steps.double()
    return ROUNDING * (blocks @ sums.t()) / HALF_STEPS


def _split(x: Tensor, size: int) -> Tensor:
    """The last axis in blocks of this size, as two axes."""
    return x.reshape(*x.shape[:-1], -1, size)
