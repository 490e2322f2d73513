"""The ONNX nodes of products of two activations.

- A product that emits codes is QLinearMatMul and an integer Clip, where its codes do not fill a byte.
- A product that emits numbers is MatMulIntegerToFloat of the runtime's own domain.
- A product in float is MatMul.

Operands are uint8 codes, as all activations: products of two of them are exact on every CPU.
"""

from __future__ import annotations

import numpy as np

from bayesbits.deploy.onnx.node_writer import NodeWriter
from bayesbits.deploy.onnx.tensor_names import RUNTIME_DOMAIN
from bayesbits.records.integer_network import IntegerProduct

BYTE = (0, 255)


def write_product(
    writer: NodeWriter, product: IntegerProduct, operands: tuple[str, str], output: str, name: str
) -> None:
    """Write the nodes of a product; `name` is that of the node which multiplies."""
    if product.arithmetic == "float":
        writer.add("MatMul", operands, output, name=name)
        return
    assert product.left is not None
    assert product.right is not None
    left, right = (writer.network.grid(grid) for grid in (product.left, product.right))
    (left_step, left_zero), (right_step, right_zero) = writer.grid_constants(left), writer.grid_constants(right)
    if product.output is None:
        inputs = [*operands, left_step, right_step, left_zero, right_zero]
        writer.add("MatMulIntegerToFloat", inputs, output, name=name, domain=RUNTIME_DOMAIN)
        return
    grid = writer.network.grid(product.output)
    bounds = (product.output_low + grid.zero_point, product.output_high + grid.zero_point)
    target = output if bounds == BYTE else f"{name}/codes"
    inputs = [operands[0], left_step, left_zero, operands[1], right_step, right_zero, *writer.grid_constants(grid)]
    writer.add("QLinearMatMul", inputs, target, name=name)
    if target != output:
        ends = writer.bounds(f"{product.name}.codes", *map(np.uint8, bounds))
        writer.add("Clip", [target, *ends], output)
