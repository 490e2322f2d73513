"""The codes of a weight in groups as an ONNX file holds them, read again by the definition of MatMulNBits.

This is independent of the code that packs them. The options of the node are part of what is proven: sizes, the width of
the codes, and the accuracy level, which says that products are computed in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from bayesbits.deploy.verification.result import VerificationError
from bayesbits.records.integer_network import IntegerLayer

Array = NDArray[Any]

FLOAT32_LEVEL = 1


def unpack_blocks(layer: IntegerLayer, packed: Array, node: NodeProto) -> Array:
    """The codes [outputs, inputs] of a layer; raises where the options of its node are not those of the layer."""
    found = {attribute.name: attribute.i for attribute in node.attribute}
    outputs, inputs = layer.weight_shape
    wanted = {"N": outputs, "K": inputs, "block_size": layer.group_size, "accuracy_level": FLOAT32_LEVEL}
    for name, value in wanted.items():
        if found.get(name) != value:
            raise VerificationError(
                f"{layer.name}: {name} of its {node.op_type} is {found.get(name)} in the ONNX file, and {value} in the "
                "deployed network"
            )
    if len(node.input) != 3:
        raise VerificationError(f"{layer.name}: its {node.op_type} reads other tensors than input, codes and steps")
    bits = found["bits"]
    each_bit = np.unpackbits(packed.reshape(outputs, -1, 1), axis=-1, bitorder="little").reshape(outputs, -1, bits)
    codes = each_bit.astype(np.int64) @ (1 << np.arange(bits)) - 2 ** (bits - 1)
    if (codes[:, inputs:] != 0).any():
        raise VerificationError(f"{layer.name}: its last group of inputs is not filled up with zeros in the ONNX file")
    return np.asarray(codes[:, :inputs])
