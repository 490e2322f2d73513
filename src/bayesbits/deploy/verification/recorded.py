"""The record of a deployed network, and the modules that execute it, against the constants that were derived anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from bayesbits.compression.compressor import Compressor
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.verification.derived import Constants
from bayesbits.deploy.verification.record import Constant, VerificationError
from bayesbits.deploy.verification.rounding import ROUNDINGS
from bayesbits.records.integer_network import Grid, IntegerLayer, IntegerNetwork
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Layer, output_axis
from bayesbits.utils.naming import key_of

Array = NDArray[Any]


def check_record(
    small: DeployedNetwork, fixed: Compressor, plan: Plan, layers: Mapping[str, Constants], grids: Mapping[str, Grid]
) -> Constant:
    """Raise at the first constant that is not what plan and weights give; returns how many were compared."""
    network, topology = small.integer, fixed.topology
    removed = set(network.structure.removed)
    strange = removed - plan.removed(topology)
    if strange:
        group = topology.group_of(min(strange))
        raise VerificationError(f"{group.name}: channels are removed in the deployed network that the plan keeps")
    for grid in network.structure.grids:
        _check_grid(grid, grids.get(grid.name))
    weights = biases = 0
    for layer in network.layers:
        if layer.name not in layers:
            raise VerificationError(f"{layer.name}: {_STRANGE} has no such layer; {_WHOSE}")
        constants = layers[layer.name]
        _check_layer(layer, constants, topology.layer(layer.name))
        weights += _check_weight(network, layer, constants, topology.layer(layer.name), removed)
        biases += _check_bias(network, layer, constants, topology.layer(layer.name), removed)
    _check_modules(small)
    _check_floats(small, fixed.model)
    return Constant(weights, biases, len(network.structure.grids))


_STRANGE = "the network of this compressor"
_WHOSE = "is this the compressor that was deployed?"


def _check_grid(grid: Grid, derived: Grid | None) -> None:
    if derived is None:
        raise VerificationError(f"{grid.name}: {_STRANGE} does not quantize it; {_WHOSE}")
    for field in ("bits", "signed", "step", "low", "high", "beta", "zero_point"):
        _equal(grid.name, field.replace("_", " "), getattr(grid, field), getattr(derived, field))


def _check_layer(layer: IntegerLayer, constants: Constants, traced: Layer) -> None:
    _equal(layer.name, "bits", layer.bits, constants.bits)
    _equal(layer.name, "kind", layer.kind, traced.kind)
    _equal(layer.name, "arithmetic", layer.arithmetic, "integer" if constants.integer else "float")
    if layer.input is not None:
        _equal(layer.name, "input", layer.input, traced.activation)


def _check_weight(
    network: IntegerNetwork, layer: IntegerLayer, constants: Constants, traced: Layer, removed: set[int]
) -> int:
    makes = _left(traced.out_channels, removed)
    if constants.codes is None:
        found = network.tensors[f"{layer.name}.weight"].numpy()
        expected = _cut(constants.weight, traced, removed)
        _same_shape(layer.name, "weight", found, expected)
        wrong = np.abs(found - expected) > ROUNDINGS * np.abs(expected)
        _none(layer.name, "weight", wrong, found, expected)
        return found.size
    assert constants.steps is not None
    steps = constants.steps if constants.steps.size == 1 else constants.steps[makes]
    _compare(layer.name, "step of the weight", network.steps(layer.name).numpy(), steps)
    codes = network.codes(layer.name).numpy()
    _compare(layer.name, "code of the weight", codes, _cut(constants.codes, traced, removed))
    return codes.size


def _check_bias(
    network: IntegerNetwork, layer: IntegerLayer, constants: Constants, traced: Layer, removed: set[int]
) -> int:
    bias = network.bias(layer.name)
    expected = constants.bias_codes if constants.integer else constants.bias
    if bias is None or expected is None:
        _equal(layer.name, "bias", bias is not None, expected is not None)
        return 0
    _compare(layer.name, "bias", bias.numpy(), expected[_left(traced.out_channels, removed)])
    return bias.numel()


def _cut(weight: Array, layer: Layer, removed: set[int]) -> Array:
    reads, makes = _left(layer.in_channels, removed), _left(layer.out_channels, removed)
    if layer.groups > 1:
        return np.asarray(weight[makes] if layer.depthwise else weight)
    rows, columns = (reads, makes) if layer.kind == "conv_transpose" else (makes, reads)
    return np.asarray(weight[np.ix_(rows, columns)])


def _left(channels: tuple[int, ...], removed: set[int]) -> Array:
    return np.array([index for index, channel in enumerate(channels) if channel not in removed], dtype=np.int64)


def _check_modules(small: DeployedNetwork) -> None:
    """What executes the record computes with the numbers of the record."""
    network, modules = small.integer, dict[str, Any](small.program.named_modules())
    for layer in network.layers:
        module = modules[f"layers.{key_of(layer.name)}"]
        _equal(layer.name, "record of its module", module.layer, layer)
        if layer.arithmetic == "integer":
            assert layer.input is not None
            scale = np.float32(network.grid(layer.input).step) * network.steps(layer.name).numpy()
            if layer.output is not None:
                scale = scale / np.float32(network.grid(layer.output).step)
            _compare(layer.name, "scale", _numbers(module.scale).reshape(-1), scale)
            _compare(layer.name, "code of the weight", _numbers(module.codes), network.codes(layer.name).numpy())
        else:
            _compare(layer.name, "weight", _numbers(module.weight), _float_weight(network, layer))
        bias = network.bias(layer.name)
        if bias is not None:
            _compare(layer.name, "bias", _numbers(module.bias), bias.numpy())
    for grid in network.structure.grids:
        for room in ("quantizers", "dequantizers"):
            module = modules.get(f"{room}.{key_of(grid.name)}")
            if module is not None:
                _equal(grid.name, "record of its module", module.grid, grid)
                _compare(grid.name, "step", _numbers(module.step).reshape(-1), np.array([grid.step], np.float32))


def _float_weight(network: IntegerNetwork, layer: IntegerLayer) -> Array:
    if f"{layer.name}.weight" in network.tensors:
        return _numbers(network.tensors[f"{layer.name}.weight"])
    sizes = [1] * len(layer.weight_shape)
    sizes[output_axis(layer.kind, layer.groups)] = -1
    steps = network.steps(layer.name).numpy()
    numbers: Array = network.codes(layer.name).numpy().astype(np.float32) * steps.reshape(
        sizes if steps.size > 1 else ()
    )
    return numbers


def _check_floats(small: DeployedNetwork, model: nn.Module) -> None:
    """Parameters and buffers that stay in float are those of the trained network."""
    state = model.state_dict(keep_vars=True)
    trained = {key_of(name): (name, tensor) for name, tensor in state.items() if isinstance(tensor, Tensor)}
    for plain, tensor in (*small.program.named_parameters(), *small.program.named_buffers()):
        name, expected = trained.get(plain.removeprefix("floats."), (plain, None))
        if expected is not None:
            _compare(name, "value", _numbers(tensor), _numbers(expected))


def _numbers(tensor: Any) -> Array:
    array: Array = tensor.detach().cpu().numpy()
    return array


def _equal(owner: str, what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise VerificationError(
            f"{owner}: {what} is {found} in the deployed network, and plan and weights give {expected}; {_WHOSE}"
        )


def _same_shape(owner: str, what: str, found: Array, expected: Array) -> None:
    if found.shape != expected.shape:
        raise VerificationError(
            f"{owner}: {what} has shape {found.shape} in the deployed network, and plan and weights give "
            f"{expected.shape}"
        )


def _compare(owner: str, what: str, found: Array, expected: Array) -> None:
    _same_shape(owner, what, found, expected)
    _none(owner, what, (found != expected) & ~(np.isnan(found) & np.isnan(expected)), found, expected)


def _none(owner: str, what: str, wrong: Array, found: Array, expected: Array) -> None:
    if wrong.any():
        first = tuple(int(index) for index in np.argwhere(wrong)[0])
        raise VerificationError(
            f"{owner}: {what} differs in {int(wrong.sum())} of {wrong.size} places; the first, at {first}, is "
            f"{found[first]} in the deployed network, and plan and weights give {expected[first]}; {_WHOSE}"
        )
