"""Which constants the nodes of an ONNX file read: those of their own layer or grid, all of them, and no others.

Inputs at hand need not reach the ends of every range, so that running alone does not tell whether a bound is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from onnx import ModelProto, NodeProto

from bayesbits.deploy.onnx.tensor_names import Checkpoint, read_checkpoints
from bayesbits.deploy.verification.record import VerificationError
from bayesbits.deploy.verification.runtime import layer_of
from bayesbits.records.integer_network import Grid, IntegerLayer, IntegerNetwork

_WHOLE_BYTE = (0, 255)


def check_operands(model: ModelProto, network: IntegerNetwork) -> None:
    """Raise at the first layer or quantizer that reads other constants than its own."""
    makers = {name: node for node in model.graph.node for name in node.output}
    checkpoints = read_checkpoints(model)
    places = {checkpoint.value for checkpoint in checkpoints}
    layers = {layer.name: layer for layer in network.layers}
    grids = {grid.name: grid for grid in network.structure.grids}
    for checkpoint in checkpoints:
        if checkpoint.kind == "Layer" and checkpoint.of in layers:
            layer = layers[checkpoint.of]
            shapes = {f"{layer.name}.rows", f"{layer.name}.shape", "first axis"}
            found = set(_read_by_layer(checkpoint.value, layer, makers, places - {checkpoint.value})) - shapes
            _same(checkpoint, found, _of_layer(layer, network))
        elif checkpoint.kind == "Quantize" and checkpoint.of in grids:
            grid = grids[checkpoint.of]
            _same(checkpoint, set(_read_by_quantizer(checkpoint.value, makers)), _of_quantizer(grid))


def _same(checkpoint: Checkpoint, found: set[str], expected: set[str]) -> None:
    missing, strange = sorted(expected - found), sorted(found - expected)
    if missing or strange:
        parts = [f"does not read {', '.join(missing)}"] if missing else []
        parts += [f"reads {', '.join(strange)}"] if strange else []
        raise VerificationError(f"{checkpoint.of}: the ONNX file {' and '.join(parts)} at {checkpoint.value}")


def _read_by_layer(
    value: str, layer: IntegerLayer, makers: Mapping[str, NodeProto], places: Collection[str]
) -> Iterator[str]:
    """What is read from the end of a layer back to the codes in front of it, without those."""
    waiting, met = [value], set[str]()
    while waiting:
        tensor = waiting.pop()
        node = makers.get(tensor)
        if tensor in met or tensor in places or not tensor:
            continue
        met.add(tensor)
        if node is None or node.op_type == "Constant":
            yield tensor
        elif layer_of(node.name) != layer.name:
            waiting += node.input
        else:
            waiting += node.input[1:]
            front = makers.get(node.input[0])
            if layer.arithmetic == "integer" and front is not None and front.op_type in ("DequantizeLinear", "Sub"):
                waiting += front.input[1:]


def _read_by_quantizer(value: str, makers: Mapping[str, NodeProto]) -> Iterator[str]:
    """What is read from codes back to the numbers that are quantized, without those."""
    node = makers.get(value)
    while node is not None:
        yield from node.input[1:]
        node = None if node.op_type in ("QuantizeLinear", "Div") else makers.get(node.input[0])


def _of_layer(layer: IntegerLayer, network: IntegerNetwork) -> set[str]:
    parts = {"weight"} | ({"bias"} if layer.bias else set())
    if layer.arithmetic == "float":
        if f"{layer.name}.codes" in network.tensors:
            parts.add("weight.step")
        return {f"{layer.name}.{part}" for part in parts}
    assert layer.input is not None
    reads, emits = network.grid(layer.input), None if layer.output is None else network.grid(layer.output)
    grids: set[str] = set()
    if layer.kind == "conv_transpose":
        parts.add("scale")
        grids |= {f"{reads.name}.zero_point.float"} if reads.zero_point else set()
        if emits is not None:
            parts |= {"codes.low", "codes.high"}
            grids.add(f"{emits.name}.zero_point.float")
    elif emits is None:
        parts.add("scale")
        grids.add(f"{reads.name}.zero_point")
    else:
        parts |= {f"{part}.{what}" for part in tuple(parts) for what in ("step", "zero_point")}
        if (layer.output_low + emits.zero_point, layer.output_high + emits.zero_point) != _WHOLE_BYTE:
            parts |= {"codes.low", "codes.high"}
        grids |= {f"{grid.name}.{what}" for grid in (reads, emits) for what in ("step", "zero_point")}
    return {f"{layer.name}.{part}" for part in parts} | grids


def _of_quantizer(grid: Grid) -> set[str]:
    parts = {"step", "low", "high"}
    if grid.carrier == "uint8":
        parts.add("zero_point")
        if (grid.low + grid.zero_point, grid.high + grid.zero_point) == _WHOLE_BYTE:
            parts -= {"low", "high"}
    return {f"{grid.name}.{part}" for part in parts}
