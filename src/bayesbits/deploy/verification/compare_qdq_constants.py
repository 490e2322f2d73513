"""The constants of an ONNX file in the form "qdq", compared with the record of the deployed network.

Two checks, as for the other forms: the values of the constants are equal, and every layer, product, table and quantizer
reads all of its own constants and no others. The inputs of a verification need not reach both ends of every range, and
differences of a step are allowed when the file runs, so that running it alone would not show a missing bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from bayesbits.deploy.onnx.qdq_nodes import holds_codes, holds_whole_type, zero_point
from bayesbits.deploy.onnx.runtime import layer_of
from bayesbits.deploy.onnx.tensor_names import MappedTensor, read_tensor_map
from bayesbits.deploy.verification.compare_onnx_constants import read_by_table, table_constants
from bayesbits.deploy.verification.differences import ArrayComparison
from bayesbits.deploy.verification.result import ConstantCounts, VerificationError
from bayesbits.records.integer_network import Grid, IntegerLayer, IntegerNetwork, IntegerProduct

Array = NDArray[Any]

_FILE = ArrayComparison("in the ONNX file", "in the deployed network")


def check_qdq_constants(model: ModelProto, network: IntegerNetwork) -> ConstantCounts:
    """Raise at the first tensor whose constants differ, or which reads others; returns how many are equal."""
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    reader = _Reader(model)
    layers = {layer.name: layer for layer in network.layers}
    products = {product.name: product for product in network.products}
    tables = {table.name: table for table in network.tables}
    weights, biases = dict[str, int](), dict[str, int]()
    for tensor in read_tensor_map(model):
        if tensor.kind == "Layer" and tensor.of in layers:
            layer = layers[tensor.of]
            read = reader.layer(tensor, layer)
            expected = _of_layer(layer, network, transposed=layer.kind == "linear")
            weights[layer.name] = expected[f"{layer.name}.weight"].size
            biases[layer.name] = expected[f"{layer.name}.bias"].size if layer.bias else 0
        elif tensor.kind == "Product" and tensor.of in products:
            expected, read = _of_product(products[tensor.of], network), reader.product(tensor, products[tensor.of])
        elif tensor.kind in ("Table", "Matrix") and tensor.of in tables:
            constants = table_constants(tables[tensor.of], network)
            weights[tensor.of] = constants["weight"].size
            expected = {f"{tensor.of}.{what}": value for what, value in constants.items()}
            read = reader.table(tensor)
        elif tensor.kind == "Quantize" and tensor.of in {grid.name for grid in network.structure.grids}:
            expected, read = _of_rounding(network.grid(tensor.of), None, tensor.of), reader.rounding(tensor)[1]
        else:
            raise VerificationError(f"{tensor.of}: the ONNX file was exported from another deployed network")
        _check_read(tensor, set(read), set(expected))
        for name, value in expected.items():
            _check_equal(tensor.of, name.removeprefix(f"{tensor.of}."), stored[name], value)
    return ConstantCounts(sum(weights.values()), sum(biases.values()), len(network.structure.grids))


class _Reader:
    """Reads which constants a layer, product, table or quantizer of the file reads."""

    def __init__(self, model: ModelProto) -> None:
        self._producers = {name: node for node in model.graph.node for name in node.output}
        self._stored = {tensor.name for tensor in model.graph.initializer}

    def rounding(self, tensor: MappedTensor) -> tuple[str, list[str]]:
        """The numbers that are rounded to the grid of a tensor, and the constants that this takes."""
        last = self._producers.get(tensor.value)
        kinds: tuple[str, ...] = ("DequantizeLinear", "QuantizeLinear")
        if last is not None and last.op_type == "Mul":  # codes of more than 8 bits
            kinds = ("Mul", "Clip", "Round", "Div")
        value, read = tensor.value, list[str]()
        for kind in kinds:
            node = self._producers.get(value)
            if node is None or node.op_type != kind:
                raise VerificationError(f"{tensor.of}: the ONNX file does not quantize {tensor.value}: no {kind}")
            value = node.input[0]
            read += node.input[1:]
        node = self._producers.get(value)
        owner = tensor.of if tensor.kind == "Quantize" else f"{tensor.of}.codes"
        if node is not None and node.op_type == "Clip" and node.input[1:] == [f"{owner}.low", f"{owner}.high"]:
            value = node.input[0]
            read += node.input[1:]
        return value, read

    def layer(self, tensor: MappedTensor, layer: IntegerLayer) -> list[str]:
        """The constants that a layer and the rounding behind it read."""
        value, read = (tensor.value, list[str]()) if layer.output is None else self.rounding(tensor)
        node = self._producers.get(value)
        while node is not None and layer_of(node.name) != layer.name:  # the sum with a bias, or an axis of the batch
            read += [name for name in node.input[1:] if name == f"{layer.name}.bias"]
            node = self._producers.get(node.input[0])
        if node is None:
            raise VerificationError(f"{layer.name}: the ONNX file does not compute this layer at {tensor.value}")
        return [*read, *(name for operand in node.input[1:] for name in self._constants(operand))]

    def product(self, tensor: MappedTensor, product: IntegerProduct) -> list[str]:
        """The constants that a product of two activations and the rounding behind it read."""
        value, read = (tensor.value, list[str]()) if product.output is None else self.rounding(tensor)
        node = self._producers.get(value)
        if node is None or layer_of(node.name) != product.name or node.op_type != "MatMul":
            raise VerificationError(f"{product.name}: the ONNX file does not compute this product at {tensor.value}")
        return [*read, *(name for name in node.input if name in self._stored)]

    def table(self, tensor: MappedTensor) -> list[str]:
        """The constants that a table of embeddings reads."""
        return list(read_by_table(tensor.value, self._producers))

    def _constants(self, name: str) -> Iterator[str]:
        """The constants that a tensor is computed from."""
        node = self._producers.get(name)
        for read in [] if node is None else node.input:
            yield from self._constants(read)
        if node is None:
            yield name


def _bias_numbers(network: IntegerNetwork, layer: IntegerLayer) -> Array:
    """The bias of a layer as numbers: its codes times the step of the layer's sums, or what is stored in float."""
    bias: Array = network.tensors[f"{layer.name}.bias"].numpy()
    if bias.dtype != np.int32:
        return bias
    assert layer.input is not None
    step = np.float64(network.grid(layer.input).step) * network.steps(layer.name).numpy().astype(np.float64)
    return (bias.astype(np.float64) * step).astype(np.float32)


def _of_layer(layer: IntegerLayer, network: IntegerNetwork, *, transposed: bool) -> dict[str, Array]:
    """The constants that a layer reads, with the rounding behind it."""
    codes = network.tensors.get(f"{layer.name}.codes")
    found: dict[str, Array] = {}
    if codes is None:
        found["weight"] = network.tensors[f"{layer.name}.weight"].numpy()
    else:
        found["weight"], found["weight.step"] = codes.numpy(), network.steps(layer.name).numpy()
        if holds_codes(layer):
            found["weight.zero_point"] = np.zeros(found["weight.step"].shape, np.int8)
    found["weight"] = found["weight"].T if transposed else found["weight"]
    if layer.bias:
        found["bias"] = _bias_numbers(network, layer)
    own = {f"{layer.name}.{what}": value for what, value in found.items()}
    if layer.output is None:
        return own
    bounds = (layer.output_low, layer.output_high)
    return own | _of_rounding(network.grid(layer.output), bounds, f"{layer.name}.codes")


def _of_product(product: IntegerProduct, network: IntegerNetwork) -> dict[str, Array]:
    """The constants that the rounding behind a product of two activations reads; the product itself has none."""
    if product.output is None:
        return {}
    bounds = (product.output_low, product.output_high)
    return _of_rounding(network.grid(product.output), bounds, f"{product.name}.codes")


def _of_rounding(grid: Grid, bounds: tuple[int, int] | None, owner: str) -> dict[str, Array]:
    """The constants that round to a grid, between two codes whose constants belong to `owner`."""
    low, high = (grid.low, grid.high) if bounds is None else bounds
    step = np.float32(grid.step)
    found: dict[str, Any] = {f"{grid.name}.step": step}
    unit = np.float32(1)
    if grid.carrier == "uint8":
        unit, zero = step, zero_point(grid)
        found[f"{grid.name}.zero_point"] = zero
        if holds_whole_type(zero, low, high):
            return {name: np.asarray(value) for name, value in found.items()}
    found |= {f"{owner}.low": np.float32(low) * unit, f"{owner}.high": np.float32(high) * unit}
    return {name: np.asarray(value) for name, value in found.items()}


def _check_read(tensor: MappedTensor, read: set[str], expected: set[str]) -> None:
    missing, others = sorted(expected - read), sorted(read - expected)
    if missing or others:
        parts = [f"does not read {', '.join(missing)}"] if missing else []
        parts += [f"reads {', '.join(others)}"] if others else []
        raise VerificationError(f"{tensor.of}: the ONNX file {' and '.join(parts)} at {tensor.value}")


def _check_equal(owner: str, what: str, found: Array, expected: Array) -> None:
    """Compare values; the file may have axes of size one."""
    wide = np.float64 if np.issubdtype(expected.dtype, np.floating) else np.int64
    _FILE.check_equal(owner, what, found.astype(wide).reshape(-1), expected.astype(wide).reshape(-1))
