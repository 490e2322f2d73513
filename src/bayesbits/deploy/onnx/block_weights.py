"""Weights in groups: as onnxruntime's MatMulNBits reads them, or expanded when the file is loaded.

MatMulNBits multiplies float activations with packed weights, which it expands block by block while it reads them, so
that a network that waits for its weights waits less. A code is stored as an unsigned integer, which is the code plus
2^(bits - 1), lowest bits first; widths that it lacks are stored in the next wider one, with the same values.

Its accuracy level is fixed in the file, as the runtime would choose one otherwise:

- 1: sums in float32. Only 4 bits have a quick kernel (0.65 to 0.75 of the time of the float product of one row with a
  weight of 2048 x 2048); those of 2 and 8 bits take 27 times as long as the float product. So 2 bits are stored as 4,
  and wider weights are expanded once, when the file is loaded, and multiplied in float.
- 4: every block of activations is rounded to 8 bits on the way. All widths are quick (0.15 to 0.35 of the time), and
  the product is off by at most half a step of each block (see `deploy.verification.block_weights`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from bayesbits.deploy.onnx.tensor_names import RUNTIME_DOMAIN
from bayesbits.records.integer_network import IntegerLayer

if TYPE_CHECKING:
    from bayesbits.deploy.onnx.layer_nodes import LayerWriter

Array = NDArray[Any]

OPERATION = "MatMulNBits"
FLOAT32, INT8 = 1, 4
ACCURACY_LEVELS = (FLOAT32, INT8)
"""The accuracy levels that are written, by what they multiply in."""
FLOAT32_WIDTHS, WIDTHS, OLDER_WIDTHS = (4,), (2, 4, 8), (4, 8)
"""The widths with a quick kernel in float32, all widths, and those that releases before the 2-bit kernel have."""


def stored_bits(bits: int, accuracy: int, compact: bool) -> int | None:
    """The width in which MatMulNBits reads a weight; None where it is expanded when the file is loaded."""
    widths = FLOAT32_WIDTHS if accuracy == FLOAT32 else WIDTHS if compact else OLDER_WIDTHS
    return next((width for width in widths if bits <= width), None)


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


def write_block_product(writer: LayerWriter, layer: IntegerLayer, bits: int, x: str, output: str, name: str) -> None:
    """A linear layer in float whose weight has a step for every group of inputs, stored in this width."""
    (outputs, inputs), size = layer.weight_shape, layer.group_size
    assert size is not None
    tensors = writer.network.tensors
    packed = pack_blocks(tensors[f"{layer.name}.codes"].numpy(), bits, size)
    weight = writer.constant(f"{layer.name}.weight", packed)
    steps = writer.constant(f"{layer.name}.weight.step", tensors[f"{layer.name}.steps"].numpy().reshape(-1))
    last = f"{name}/product" if layer.bias else output
    writer.add(
        OPERATION, [x, weight, steps], last, name=name,
        domain=RUNTIME_DOMAIN, K=inputs, N=outputs, bits=bits, block_size=size, accuracy_level=writer.accuracy,
    )  # fmt: skip
    if layer.bias:
        writer.add("Add", [last, writer.constant(f"{layer.name}.bias", tensors[f"{layer.name}.bias"].numpy())], output)


def write_expanded_weight(writer: LayerWriter, layer: IntegerLayer, codes: str, name: str) -> str:
    """The numbers of a weight in groups, from its codes; the runtime computes them once, when it loads the file."""
    (outputs, inputs), size = layer.weight_shape, layer.group_size
    assert size is not None
    steps = writer.network.tensors[f"{layer.name}.steps"].numpy()
    groups = steps.shape[1]
    number = writer.add("Cast", [codes], f"{name}/codes", to=TensorProto.FLOAT)
    if groups * size != inputs:
        amounts = writer.constant(f"{layer.name}.weight.channels", np.array([0, 0, 0, groups * size - inputs]))
        number = writer.add("Pad", [number, amounts], f"{name}/filled")
    rows = writer.constant(f"{layer.name}.rows", np.array([outputs, groups, size]))
    number = writer.add("Reshape", [number, rows], f"{name}/groups")
    step = writer.constant(f"{layer.name}.weight.step", steps.reshape(outputs, groups, 1))
    number = writer.add("Mul", [number, step], f"{name}/scaled")
    shape = writer.constant(f"{layer.name}.shape", np.array([outputs, groups * size]))
    number = writer.add("Reshape", [number, shape], f"{name}/weight")
    if groups * size != inputs:
        first, axis = writer.constant("first axis", np.array([0])), writer.constant("channel axis", np.array([1]))
        end = writer.constant(f"{layer.name}.end", np.array([inputs]))
        number = writer.add("Slice", [number, first, end, axis], f"{name}/weight/cut")
    return number
