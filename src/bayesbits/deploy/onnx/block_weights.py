"""Weights in groups as onnxruntime's MatMulNBits reads them: blocks of packed codes, and a step for every block.

MatMulNBits multiplies float activations with weights of 2, 4 or 8 bits, which it expands block by block while it reads
them, so that a network that waits for its weights waits less. Other widths are stored in the next wider one, with the
same values. A code is stored as an unsigned integer, which is the code plus 2^(bits - 1), lowest bits first.

`ACCURACY` fixes the kernel's precision: 1 is float32. Without it the runtime may choose another, such as activations in
8 bits, and the product would not be the one that was trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bayesbits.records.integer_network import IntegerLayer

if TYPE_CHECKING:
    from bayesbits.deploy.onnx.standard_nodes import NodeWriter

Array = NDArray[Any]

OPERATION, DOMAIN = "MatMulNBits", "com.microsoft"
ACCURACY = 1
WIDTHS, OLDER_WIDTHS = (2, 4, 8), (4, 8)
"""The widths of the operation, and those that releases before the 2-bit kernel have."""


def stored_bits(bits: int, compact: bool) -> int:
    """The width in which a weight of at most 8 bits is stored."""
    return next(width for width in (WIDTHS if compact else OLDER_WIDTHS) if bits <= width)


def pack_blocks(codes: Array, bits: int, size: int) -> Array:
    """Codes [outputs, inputs] as bytes [outputs, blocks, bytes of a block]; the last block is filled up with zeros."""
    outputs, inputs = codes.shape
    blocks = -(-inputs // size)
    filled = np.pad(codes.astype(np.int16), ((0, 0), (0, blocks * size - inputs)))
    stored = (filled + 2 ** (bits - 1)).astype(np.uint8).reshape(outputs, blocks, size)
    each = 8 // bits
    fields = stored.reshape(outputs, blocks, size // each, each) << (bits * np.arange(each, dtype=np.uint8))
    packed: Array = np.bitwise_or.reduce(fields, axis=-1).astype(np.uint8)
    return packed


def write_block_product(writer: NodeWriter, layer: IntegerLayer, x: str, output: str, name: str) -> None:
    """A linear layer in float whose weight has a step for every group of inputs."""
    (outputs, inputs), size = layer.weight_shape, layer.group_size
    assert size is not None
    bits, tensors = stored_bits(layer.bits, writer.compact), writer.network.tensors
    packed = pack_blocks(tensors[f"{layer.name}.codes"].numpy(), bits, size)
    weight = writer.constant(f"{layer.name}.weight", packed)
    steps = writer.constant(f"{layer.name}.weight.step", tensors[f"{layer.name}.steps"].numpy().reshape(-1))
    last = f"{name}/product" if layer.bias else output
    writer.add(
        OPERATION, [x, weight, steps], last, name=name,
        domain=DOMAIN, K=inputs, N=outputs, bits=bits, block_size=size, accuracy_level=ACCURACY,
    )  # fmt: skip
    if layer.bias:
        writer.add("Add", [last, writer.constant(f"{layer.name}.bias", tensors[f"{layer.name}.bias"].numpy())], output)
