"""The constants of an ONNX file, compared with the record of the deployed network.

Two checks: the values of the constants are equal, and every layer and quantizer of the file reads all of its own
constants and no others. The second is needed because the inputs of a verification need not reach both ends of every
range, so that running the file alone would not show a missing bound.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, numpy_helper

from bayesbits.deploy.onnx.block_weights import OPERATION
from bayesbits.deploy.onnx.hard_swish_nodes import steps_below_zero
from bayesbits.deploy.onnx.runtime import layer_of
from bayesbits.deploy.onnx.tensor_names import MappedTensor, read_tensor_map
from bayesbits.deploy.verification.block_weights import unpack_blocks
from bayesbits.deploy.verification.code_operations import (
    ON_CODES,
    clip_of_hard_swish,
    constants_in_front,
    operation_on_codes,
)
from bayesbits.deploy.verification.differences import ArrayComparison
from bayesbits.deploy.verification.result import ConstantCounts, VerificationError
from bayesbits.graph.hard_swish import HEIGHT
from bayesbits.records.integer_network import Grid, IntegerLayer, IntegerNetwork, IntegerProduct, IntegerTable

Array = NDArray[Any]

_FILE = ArrayComparison("in the ONNX file", "in the deployed network")
_UINT8_BOUNDS = (0, 255)
_PADDED = ("weight", "weight.step", "weight.zero_point", "bias", "bias.step", "bias.zero_point")
_MERGED = ("weight.apart", "weight.own", "weight.whole")
_PARTS = ("parts", "bias.shape")
_SHAPES = frozenset(("features", "rows", "shape", "end", *(f"{what}.channels" for what in _PADDED), *_MERGED, *_PARTS))
"""The constants of a layer that hold sizes and places: a mistake in them shows when the file runs."""
_SHARED = frozenset(("first axis", "channel axis", "one", "no weight"))
"""The constants of all layers: axes, the step of channels of zeros, and the weight between merged groups."""


def check_onnx_constants(model: ModelProto, network: IntegerNetwork) -> ConstantCounts:
    """Raise at the first layer whose constants differ, or which reads others; returns how many are equal."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    weights = biases = 0
    blocks = {layer_of(node.name): node for node in model.graph.node if node.op_type == OPERATION}
    for layer in network.layers:
        for what, expected, required in _layer_constants(layer, network):
            tensor = stored.get(f"{layer.name}.{what}")
            if tensor is None:
                if required:
                    raise VerificationError(f"{layer.name}: the ONNX file has no constant {layer.name}.{what}")
                continue
            found = numpy_helper.to_array(tensor)
            if what == "weight" and layer.name in blocks:
                found = unpack_blocks(layer, found, blocks[layer.name])
            _check_equal(layer.name, what, found, expected)
            weights += expected.size if what == "weight" else 0
            biases += expected.size if what == "bias" else 0
    for table in network.tables:
        for what, expected in table_constants(table, network).items():
            constant = stored.get(f"{table.name}.{what}")
            if constant is None:
                raise VerificationError(f"{table.name}: the ONNX file has no constant {table.name}.{what}")
            _check_equal(table.name, what, numpy_helper.to_array(constant), expected)
            weights += expected.size if what == "weight" else 0
    for product in network.products:
        for what, expected in _product_constants(product, network):
            tensor = stored.get(f"{product.name}.{what}")
            if tensor is not None:
                _check_equal(product.name, what, numpy_helper.to_array(tensor), expected)
    for grid in network.structure.grids:
        for what, expected in _grid_constants(grid):
            tensor = stored.get(f"{grid.name}.{what}")
            if tensor is not None:
                _check_equal(grid.name, what, numpy_helper.to_array(tensor), expected)
    _check_constants_read(model, network)
    return ConstantCounts(weights, biases, len(network.structure.grids))


def _layer_constants(layer: IntegerLayer, network: IntegerNetwork) -> Iterator[tuple[str, Array, bool]]:
    """The constants that a layer may have in the file, and whether it must have them."""
    if f"{layer.name}.codes" in network.tensors:
        steps = network.steps(layer.name).numpy()
        yield "weight", network.codes(layer.name).numpy(), True
        yield "weight.step", steps, False
        yield "weight.zero_point", np.zeros(steps.shape, np.int8), False
        if layer.arithmetic == "integer" and not layer.dynamic:
            assert layer.input is not None
            scale = np.float32(network.grid(layer.input).step) * steps
            yield "bias.step", scale, False
            yield "bias.zero_point", np.zeros(steps.shape, np.int32), False
            if layer.kind == "conv_transpose" and layer.output is not None:
                scale = scale / np.float32(network.grid(layer.output).step)
            yield "scale", scale, False
    else:
        yield "weight", network.tensors[f"{layer.name}.weight"].numpy(), True
    bias = network.bias(layer.name)
    if bias is not None:
        yield "bias", bias.numpy(), True
    if layer.output is not None:
        shift = network.grid(layer.output).zero_point if layer.kind != "conv_transpose" else 0
        yield "codes.low", np.asarray(layer.output_low + shift), False
        yield "codes.high", np.asarray(layer.output_high + shift), False


def table_constants(table: IntegerTable, network: IntegerNetwork) -> dict[str, Array]:
    """The constants that a table has in the file."""
    if f"{table.name}.codes" not in network.tensors:
        return {"weight": network.tensors[f"{table.name}.weight"].numpy()}
    return {"weight": network.codes(table.name).numpy(), "weight.step": network.steps(table.name).numpy()}


def _product_constants(product: IntegerProduct, network: IntegerNetwork) -> Iterator[tuple[str, Array]]:
    """The constants that a product of two activations may have in the file."""
    if product.arithmetic == "float":
        return
    if product.output is not None:
        shift = network.grid(product.output).zero_point
        yield "codes.low", np.asarray(product.output_low + shift)
        yield "codes.high", np.asarray(product.output_high + shift)


def _grid_constants(grid: Grid) -> Iterator[tuple[str, Array]]:
    """The constants that a grid may have in the file."""
    shift = grid.zero_point if grid.carrier == "uint8" else 0
    yield "step", np.asarray(np.float32(grid.step))
    yield "zero_point", np.asarray(shift)
    yield "zero_point.float", np.asarray(shift)
    yield "low", np.asarray(grid.low + shift)
    yield "high", np.asarray(grid.high + shift)
    steps = steps_below_zero(grid)
    if steps is not None:
        yield "hard_swish.high", np.asarray(2 * steps)
        yield "hard_swish.step", np.asarray(np.float32(grid.step / HEIGHT))


def _check_equal(owner: str, what: str, found: Array, expected: Array) -> None:
    """Compare values; the file may have another integer type, and axes of size one."""
    wide = np.float64 if np.issubdtype(expected.dtype, np.floating) else np.int64
    _FILE.check_equal(owner, what, found.astype(wide).reshape(-1), expected.astype(wide).reshape(-1))


def _check_constants_read(model: ModelProto, network: IntegerNetwork) -> None:
    """Raise at the first layer or quantizer that reads other constants than its own."""
    producers = {name: node for node in model.graph.node for name in node.output}
    tensors = read_tensor_map(model)
    values = {tensor.value for tensor in tensors}
    in_float = {layer_of(node.name) for node in model.graph.node if node.op_type == "Conv"}
    layers = {layer.name: layer for layer in network.layers}
    products = {product.name: product for product in network.products}
    grids = {grid.name: grid for grid in network.structure.grids}
    tables = {table.name: table for table in network.tables}
    for tensor in tensors:
        if tensor.kind == "Layer" and tensor.of in layers:
            layer = layers[tensor.of]
            read = set(_read_by_layer(tensor.value, layer, producers, values - {tensor.value}))
            read -= {f"{layer.name}.{what}" for what in _SHAPES} | _SHARED
            _check_same_constants(tensor, read, _constants_of_layer(layer, network, in_float=layer.name in in_float))
        elif tensor.kind in ("Table", "Matrix") and tensor.of in tables:
            expected = {f"{tensor.of}.{what}" for what in table_constants(tables[tensor.of], network)}
            _check_same_constants(tensor, set(read_by_table(tensor.value, producers)), expected)
        elif tensor.kind == "Product" and tensor.of in products:
            read = set(_read_by_product(tensor.value, tensor.of, producers))
            _check_same_constants(tensor, read, _constants_of_product(products[tensor.of], network))
        elif tensor.kind == "Quantize" and tensor.of in grids:
            read = set(_read_by_quantizer(tensor.value, producers))
            expected = _constants_of_quantizer(grids[tensor.of])
            if (operation := operation_on_codes(tensor.value, producers)) is not None:
                expected |= constants_in_front(operation, producers, tensors, network)
            _check_same_constants(tensor, read, expected)


def _check_same_constants(tensor: MappedTensor, read: set[str], expected: set[str]) -> None:
    missing, others = sorted(expected - read), sorted(read - expected)
    if missing or others:
        parts = [f"does not read {', '.join(missing)}"] if missing else []
        parts += [f"reads {', '.join(others)}"] if others else []
        raise VerificationError(f"{tensor.of}: the ONNX file {' and '.join(parts)} at {tensor.value}")


def _read_by_layer(
    value: str, layer: IntegerLayer, producers: Mapping[str, NodeProto], mapped: Collection[str]
) -> Iterator[str]:
    """The constants that are read between the layer's input and its output."""
    waiting, visited = [value], set[str]()
    while waiting:
        tensor = waiting.pop()
        node = producers.get(tensor)
        if tensor in visited or tensor in mapped or not tensor:
            continue
        visited.add(tensor)
        if node is None or node.op_type == "Constant":
            yield tensor
        elif node.op_type in ("DynamicQuantizeLinear", "Shape"):  # of the layer's input, or sizes that may change
            continue
        elif layer_of(node.name) != layer.name:
            waiting += node.input
        else:
            waiting += node.input[1:]
            source = producers.get(node.input[0])
            if layer.arithmetic == "integer" and source is not None and source.op_type in ("DequantizeLinear", "Sub"):
                waiting += source.input[1:]


def read_by_table(value: str, producers: Mapping[str, NodeProto]) -> Iterator[str]:
    """The constants that are read between the indices of a lookup and its rows, or for a whole weight."""
    waiting = [value]
    while waiting:
        tensor = waiting.pop()
        node = producers.get(tensor)
        if node is None:
            yield tensor
        else:
            waiting += node.input[:1] if node.op_type == "Gather" else node.input


def _read_by_product(value: str, product: str, producers: Mapping[str, NodeProto]) -> Iterator[str]:
    """The constants that are read from where two operands are multiplied on."""
    node = producers.get(value)
    while node is not None:
        if layer_of(node.name) == product:
            yield from (name for name in node.input if name not in producers)
            return
        yield from node.input[1:]
        node = producers.get(node.input[0])


def _read_by_quantizer(value: str, producers: Mapping[str, NodeProto]) -> Iterator[str]:
    """The constants that are read between the numbers that are quantized and their codes."""
    node = producers.get(value)
    while node is not None:
        yield from (name for name in node.input[1:] if name and name not in producers)
        if (clip := clip_of_hard_swish(node, producers)) is not None:
            yield from clip.input[2:]
        node = None if node.op_type in {"QuantizeLinear", "Div"} | ON_CODES else producers.get(node.input[0])


def _constants_of_layer(layer: IntegerLayer, network: IntegerNetwork, *, in_float: bool) -> set[str]:
    """The constants that a layer reads; `in_float`: a convolution is written as one of numbers in float."""
    parts = {"weight"} | ({"bias"} if layer.bias else set())
    if layer.arithmetic == "float" or layer.dynamic:
        if f"{layer.name}.codes" in network.tensors:
            parts.add("weight.step")
        return {f"{layer.name}.{part}" for part in parts}
    assert layer.input is not None
    inputs, outputs = network.grid(layer.input), None if layer.output is None else network.grid(layer.output)
    grids: set[str] = set()
    if layer.kind == "conv_transpose":
        parts.add("scale")
        grids |= {f"{inputs.name}.zero_point.float"} if inputs.zero_point else set()
        if outputs is not None:
            parts |= {"codes.low", "codes.high"}
            grids.add(f"{outputs.name}.zero_point.float")
    elif network.adds_bias_to_numbers(layer):
        parts.add("weight.step")
        grids |= {f"{inputs.name}.{what}" for what in ("step", "zero_point")}
    elif outputs is None and in_float:
        parts.add("scale")
        grids |= {f"{inputs.name}.zero_point.float"} if inputs.zero_point else set()
    elif outputs is None:
        parts.add("scale")
        grids.add(f"{inputs.name}.zero_point")
    else:
        parts |= {f"{part}.{what}" for part in tuple(parts) for what in ("step", "zero_point")}
        if (layer.output_low + outputs.zero_point, layer.output_high + outputs.zero_point) != _UINT8_BOUNDS:
            parts |= {"codes.low", "codes.high"}
        grids |= {f"{grid.name}.{what}" for grid in (inputs, outputs) for what in ("step", "zero_point")}
    return {f"{layer.name}.{part}" for part in parts} | grids


def _constants_of_product(product: IntegerProduct, network: IntegerNetwork) -> set[str]:
    if product.arithmetic == "float":
        return set()
    operands = [name for name in (product.left, product.right) if name is not None]
    if product.output is None:
        return {f"{name}.{what}" for name in operands for what in ("step", "zero_point")}
    output = network.grid(product.output)
    bounds = (product.output_low + output.zero_point, product.output_high + output.zero_point)
    ends = set() if bounds == _UINT8_BOUNDS else {f"{product.name}.codes.low", f"{product.name}.codes.high"}
    return ends | {f"{name}.{what}" for name in (*operands, output.name) for what in ("step", "zero_point")}


def _constants_of_quantizer(grid: Grid) -> set[str]:
    parts = {"step", "low", "high"}
    if grid.carrier == "uint8":
        parts.add("zero_point")
        if (grid.low + grid.zero_point, grid.high + grid.zero_point) == _UINT8_BOUNDS:
            parts -= {"low", "high"}
    return {f"{grid.name}.{part}" for part in parts}
