"""The constants of an ONNX file against the record: integers of weights and biases, steps, bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, numpy_helper

from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.verification.operands import check_operands
from bayesbits.deploy.verification.record import Constant, VerificationError
from bayesbits.records.integer_network import IntegerLayer, IntegerNetwork

Array = NDArray[Any]


def check_constants(model: ModelProto, network: IntegerNetwork) -> Constant:
    """Raise at the first layer whose constants differ, or which reads others; returns how many were compared."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    weights = biases = 0
    for layer in network.layers:
        for what, expected, needed in _constants(layer, network):
            tensor = stored.get(f"{layer.name}.{what}")
            if tensor is None:
                if needed:
                    raise VerificationError(f"{layer.name}: the ONNX file has no constant {layer.name}.{what}")
                continue
            _compare(layer.name, what, numpy_helper.to_array(tensor), expected)
            weights += expected.size if what == "weight" else 0
            biases += expected.size if what == "bias" else 0
    for grid in network.structure.grids:
        shift = grid.zero_point if grid.carrier == "uint8" else 0
        bounds = (("low", grid.low + shift), ("high", grid.high + shift))
        zeros = (("zero_point", shift), ("zero_point.float", shift))
        for what, number in (("step", np.float32(grid.step)), *zeros, *bounds):
            tensor = stored.get(f"{grid.name}.{what}")
            if tensor is not None:
                _compare(grid.name, what, numpy_helper.to_array(tensor), np.asarray(number))
    check_operands(model, network)
    return Constant(weights, biases, len(network.structure.grids))


def folded_constants(model: ModelProto, small: DeployedNetwork) -> set[str]:
    """Float constants of a file that neither the record nor the deployed network has: the exporter computed them."""
    owners = [layer.name for layer in small.integer.layers] + [grid.name for grid in small.integer.structure.grids]
    program = small.program
    present = {_digest(tensor.detach().numpy()) for tensor in (*program.parameters(), *program.buffers())}
    found = set()
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and not any(tensor.name.startswith(f"{owner}.") for owner in owners):
            array = numpy_helper.to_array(tensor)
            if array.size > 1 and _digest(array) not in present:
                found.add(tensor.name)
    return found


def _digest(array: Array) -> bytes:
    """The same for the same values in whatever order: the exporter transposes some."""
    return np.sort(array, axis=None).tobytes()


def _constants(layer: IntegerLayer, network: IntegerNetwork) -> Iterator[tuple[str, Array, bool]]:
    """What a layer may have in the file, and whether it must."""
    if f"{layer.name}.codes" in network.tensors:
        steps = network.steps(layer.name).numpy()
        yield "weight", network.codes(layer.name).numpy(), True
        yield "weight.step", steps, False
        yield "weight.zero_point", np.zeros(steps.shape, np.int8), False
        if layer.arithmetic == "integer":
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


def _compare(owner: str, what: str, found: Array, expected: Array) -> None:
    wide = np.float64 if np.issubdtype(expected.dtype, np.floating) else np.int64
    left, right = found.astype(wide).reshape(-1), expected.astype(wide).reshape(-1)
    if left.shape != right.shape:
        raise VerificationError(f"{owner}: {what} has {left.size} values in the ONNX file, and {right.size} deployed")
    differing = np.flatnonzero(left != right)
    if differing.size:
        first = differing[0]
        raise VerificationError(
            f"{owner}: {what} differs in {differing.size} of {left.size} values; the first, at {first}, is "
            f"{left[first]} in the ONNX file and {right[first]} in the deployed network"
        )
