"""ONNX models of single layers, quantizers and dequantizers, with any number of channels, to be timed by themselves.

A layer is written by the same code that writes it into the file of a whole network, with the requantization that it has
there. Weights are random, which the time does not depend on. The runtime computes integer convolutions with channels
last, and whole networks stay in that layout: so their models take and return it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
import torch
from onnx import ModelProto, TensorProto, helper

from bayesbits.deploy.onnx.custom_nodes import IR_VERSION, OPSET
from bayesbits.deploy.onnx.layer_nodes import LayerWriter
from bayesbits.deploy.onnx.node_writer import Array, NodeWriter
from bayesbits.deploy.onnx.tensor_names import RUNTIME_DOMAIN
from bayesbits.records.integer_network import Grid, IntegerLayer, IntegerNetwork, Structure
from bayesbits.records.latency_table import CODES, FLOAT, NUMBERS

_X, _Y = "x", "y"
_GRID = Grid("grid", bits=8, signed=False, step=0.1, low=0, high=255, beta=25.5)


def layer_model(layer: IntegerLayer, form: str, x_shape: Sequence[int]) -> ModelProto:
    """A model of one layer in a form of `records.latency_table`; its input has this shape, with its channels first.

    The layer's weight has the numbers of channels that are to be measured, and `x_shape` fits them.
    """
    network = _network(layer, form)
    writer = LayerWriter(network, compact=False)
    rank = len(layer.weight_shape)
    last = layer.kind == "conv" and form != FLOAT and len(x_shape) == rank
    shape = [*x_shape[:-1], layer.weight_shape[0]] if layer.kind == "linear" else list(x_shape)
    x = _X
    if last:
        x = writer.add("Transpose", [_X], "first", perm=[0, rank - 1, *range(1, rank - 1)])
        x_shape = [x_shape[0], *x_shape[2:], x_shape[1]]
    emits_last = last and form == CODES
    writer.layer(network.layers[0], x, "result" if emits_last else _Y, layer.name, shape)
    if emits_last:
        writer.add("Transpose", ["result"], _Y, perm=[0, *range(2, rank), 1])
    taken = TensorProto.FLOAT if form == FLOAT else TensorProto.UINT8
    return _model(writer, taken, x_shape, TensorProto.UINT8 if form == CODES else TensorProto.FLOAT)


def conversion_model(what: str, shape: Sequence[int], image: bool) -> ModelProto:
    """A model of one quantizer or dequantizer; codes of images have their channels last, and numbers first."""
    writer = NodeWriter(IntegerNetwork(_structure((), (_GRID,)), {}), compact=False)
    rank = len(shape)
    if what == "quantize":
        writer.quantize(_GRID, _X, "codes" if image else _Y)
        if image:
            writer.add("Transpose", ["codes"], _Y, perm=[0, *range(2, rank), 1])
        return _model(writer, TensorProto.FLOAT, shape, TensorProto.UINT8)
    if image:
        writer.add("Transpose", [_X], "codes", perm=[0, rank - 1, *range(1, rank - 1)])
        shape = [shape[0], *shape[2:], shape[1]]
    writer.dequantize(_GRID, "codes" if image else _X, _Y, at_once=True)
    return _model(writer, TensorProto.UINT8, shape, TensorProto.FLOAT)


def empty_model() -> ModelProto:
    """A model that does nothing: its time is that of a call."""
    writer = NodeWriter(IntegerNetwork(_structure((), ()), {}), compact=False)
    writer.add("Identity", [_X], _Y)
    return _model(writer, TensorProto.UINT8, [1], TensorProto.UINT8)


def example_of(model: ModelProto) -> dict[str, Array]:
    """An input for one of these models."""
    described = model.graph.input[0].type.tensor_type
    sizes = [axis.dim_value for axis in described.shape.dim]
    if described.elem_type == TensorProto.UINT8:
        return {_X: (np.arange(prod(sizes)) % 251).astype(np.uint8).reshape(sizes)}
    return {_X: (np.arange(prod(sizes)) % 251 / np.float32(97) - 1).astype(np.float32).reshape(sizes)}


def with_channels(layer: IntegerLayer, inputs: int, outputs: int) -> IntegerLayer:
    """A layer with other numbers of channels; those of a grouped convolution that is not depthwise stay."""
    kernel = layer.weight_shape[2:]
    if layer.groups > 1:
        if layer.groups != layer.weight_shape[0] or layer.weight_shape[1] != 1:
            return layer
        return replace(layer, weight_shape=(outputs, 1, *kernel), groups=outputs)
    pair = (inputs, outputs) if layer.kind == "conv_transpose" else (outputs, inputs)
    return replace(layer, weight_shape=(*pair, *kernel))


def _network(layer: IntegerLayer, form: str) -> IntegerNetwork:
    """An integer network of one layer with random weights."""
    generator = torch.Generator().manual_seed(0)
    shape = layer.weight_shape
    outputs = shape[1] * layer.groups if layer.kind == "conv_transpose" else shape[0]
    tensors = {}
    if form == FLOAT:
        layer = replace(layer, arithmetic="float", bits=32, input=None, output=None)
        tensors[f"{layer.name}.weight"] = torch.randn(shape, generator=generator)
        tensors[f"{layer.name}.bias"] = torch.zeros(outputs)
    else:
        low, high = (layer.output_low, layer.output_high) if layer.output is not None else (0, 255)
        layer = replace(
            layer, arithmetic="integer", bits=8, input=_GRID.name, output=_GRID.name if form == CODES else None,
            output_low=0, output_high=min(255, high - low),
        )  # fmt: skip
        tensors[f"{layer.name}.codes"] = torch.randint(-127, 128, shape, generator=generator).to(torch.int8)
        tensors[f"{layer.name}.steps"] = torch.full((outputs,), 0.01)
        inside = layer.kind == "linear" and form == NUMBERS  # the network, where the bias is added to the numbers
        tensors[f"{layer.name}.bias"] = torch.zeros(outputs, dtype=torch.float32 if inside else torch.int32)
    return IntegerNetwork(_structure((layer,), (_GRID,)), tensors)


def _structure(layers: tuple[IntegerLayer, ...], grids: tuple[Grid, ...]) -> Structure:
    return Structure(
        layers=layers, grids=grids, takes=(), returns=None, inputs=(), input_shapes=(), input_types=(), batched=(),  # type: ignore[arg-type]
        outputs=(), removed=(), other_macs=0, other_parameters=0, notes=(),
    )  # fmt: skip


def _model(writer: NodeWriter, taken: int, x_shape: Sequence[int], given: int) -> ModelProto:
    graph = helper.make_graph(
        writer.nodes,
        "layer",
        [helper.make_tensor_value_info(_X, taken, list(x_shape))],
        [helper.make_tensor_value_info(_Y, given, None)],
        list(writer.constants.values()),
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(RUNTIME_DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
