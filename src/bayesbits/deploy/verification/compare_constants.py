"""The constants of the simulation and of the deployed network, compared with those derived from plan and weights.

The simulation's weights and biases have to be equal up to rounding: it folds batch norms in and divides them out again
in float32. Everything that the deployed network computes with has to be equal exactly: its record, the modules that
execute the record, and the parameters that stay in float.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bayesbits.compression.compressor import Compressor
from bayesbits.deploy.modules import DEQUANTIZERS, FLOATS, LAYERS, PRODUCTS, QUANTIZERS, target_of
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.verification.derived_constants import LayerConstants, kept_channels
from bayesbits.deploy.verification.differences import LAYER_ROUNDOFF, ArrayComparison
from bayesbits.deploy.verification.result import ConstantCounts, VerificationError
from bayesbits.nn.batch_norm import AttachedBatchNorm
from bayesbits.nn.folding import fold_factor, folded_bias, round_bias
from bayesbits.nn.layer import AttachedLayer
from bayesbits.nn.weight_product import find_layer
from bayesbits.records.integer_network import Grid, IntegerLayer, IntegerNetwork, IntegerProduct
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Layer, Topology, output_axis
from bayesbits.utils.naming import key_of
from bayesbits.utils.torch_private import BatchNorm

Array = NDArray[Any]

FOLDING_ROUNDOFF = 2.0**-20
"""The relative error of folding a batch norm into a weight and out again in float32."""
INTEGER_BITS, LARGEST_CODED_BITS = 8, 16
"""The widest operands of integer products, and the widest tensors with codes."""
SMALLEST = torch.finfo(torch.float32).tiny
"""Below the smallest normal number float32 has fewer digits, and at last none."""
_WHOSE = "is this the compressor that was deployed?"
_DEPLOYED = ArrayComparison("in the deployed network", "from plan and weights", f"; {_WHOSE}")


def check_simulated_constants(fixed: Compressor, constants: Mapping[str, LayerConstants]) -> None:
    """Raise at the first layer of the simulation whose weight or bias is not the derived one."""
    with torch.no_grad():
        for layer in fixed.topology.layers:
            module = find_layer(fixed.model, layer.name)
            if isinstance(module, AttachedLayer):
                norm = None if layer.norm is None else fixed.model.get_submodule(layer.norm)
                assert isinstance(norm, BatchNorm | None)
                _check_simulated_layer(layer, module, norm, constants[layer.name])


def _check_simulated_layer(
    layer: Layer, module: AttachedLayer, norm: BatchNorm | None, constants: LayerConstants
) -> None:
    channels = len(layer.out_channels)
    factor = torch.ones(channels, dtype=torch.float64) if norm is None else fold_factor(norm, torch.float64)
    assert isinstance(norm, AttachedBatchNorm | None)
    gate = module.parts.gate if norm is None else norm.parts.gate
    gated = factor if gate is None else factor * gate.values().double()
    weight = module.effective_weight().double() * module.along_outputs(gated)
    _check_close(layer.name, "weight", weight, torch.from_numpy(constants.weight), torch.zeros(()))
    if constants.bias is None:
        return
    step = module.bias_step()
    if norm is None:
        assert module.bias is not None
        bias: Tensor = module.bias if step is None else round_bias(module.bias, step)
        size = bias.abs().double()
    else:
        shift = norm.effective_shift()
        wide = torch.zeros(channels, dtype=torch.float64) if shift is None else shift.double()
        bias = folded_bias(norm, factor, module.bias, wide)
        size = wide.abs() + (wide - bias).abs()
        size = size if norm.bias is None else size + norm.bias.abs()  # the shift before it was rounded to the grid
    bias = bias.double() if gate is None else bias * gate.values().double()
    tolerance = FOLDING_ROUNDOFF * size
    if step is not None and not constants.integer:  # a float layer is deployed with its bias unrounded
        tolerance = tolerance + 0.5 * step.double()
    _check_close(layer.name, "bias", bias, torch.from_numpy(constants.bias), tolerance)


def _check_close(layer: str, what: str, simulated: Tensor, derived: Tensor, tolerance: Tensor) -> None:
    wrong = ~((simulated - derived).abs() <= FOLDING_ROUNDOFF * derived.abs() + tolerance + SMALLEST)
    if bool(wrong.any()):
        raise VerificationError(
            f"{layer}: {int(wrong.sum())} of {wrong.numel()} numbers of the {what} that it was trained with are not "
            "those that plan and weights give"
        )


def check_deployed_constants(
    small: DeployedNetwork,
    fixed: Compressor,
    plan: Plan,
    constants: Mapping[str, LayerConstants],
    grids: Mapping[str, Grid],
) -> ConstantCounts:
    """Raise at the first constant of the deployed network that is not the derived one; returns how many are equal."""
    network, topology = small.integer, fixed.topology
    removed = set(network.structure.removed)
    unplanned = removed - plan.removed(topology)
    if unplanned:
        group = topology.group_of(min(unplanned))
        raise VerificationError(f"{group.name}: channels are removed in the deployed network that the plan keeps")
    for grid in network.structure.grids:
        _check_grid(grid, grids.get(grid.name))
    weights = biases = 0
    for layer in network.layers:
        if layer.name not in constants:
            raise VerificationError(f"{layer.name}: the network of this compressor has no such layer; {_WHOSE}")
        derived, traced = constants[layer.name], topology.layer(layer.name)
        _check_layer(layer, derived, traced)
        weights += _check_weight(network, layer, derived, traced, removed)
        biases += _check_bias(network, layer, derived, traced, removed)
    for product in network.products:
        _check_product(product, topology, grids)
    _check_modules(small)
    _check_float_tensors(small, fixed.model, _norm_channels(fixed, plan))
    return ConstantCounts(weights, biases, len(network.structure.grids))


def _check_grid(grid: Grid, derived: Grid | None) -> None:
    if derived is None:
        raise VerificationError(f"{grid.name}: the network of this compressor does not quantize it; {_WHOSE}")
    for field in ("bits", "signed", "step", "low", "high", "beta", "alpha", "zero_point"):
        _check_field(grid.name, field.replace("_", " "), getattr(grid, field), getattr(derived, field))


def _check_layer(layer: IntegerLayer, derived: LayerConstants, traced: Layer) -> None:
    _check_field(layer.name, "bits", layer.bits, derived.bits)
    _check_field(layer.name, "kind", layer.kind, traced.kind)
    _check_field(layer.name, "arithmetic", layer.arithmetic, "integer" if derived.integer else "float")
    _check_field(layer.name, "quantization at run time", layer.dynamic, derived.dynamic)
    if layer.input is not None:
        _check_field(layer.name, "input", layer.input, traced.activation)


def _check_product(product: IntegerProduct, topology: Topology, grids: Mapping[str, Grid]) -> None:
    traced = next((one for one in topology.products if one.name == product.name), None)
    if traced is None:
        raise VerificationError(f"{product.name}: the network of this compressor has no such product; {_WHOSE}")
    read = [grids.get(name) for name in (traced.left, traced.right)]
    coded = [grid.name if grid is not None and grid.bits <= LARGEST_CODED_BITS else None for grid in read]
    _check_field(product.name, "operands", [product.left, product.right], coded)
    narrow = all(grid is not None and grid.bits <= INTEGER_BITS for grid in read)
    _check_field(product.name, "arithmetic", product.arithmetic, "integer" if narrow else "float")


def _check_weight(
    network: IntegerNetwork, layer: IntegerLayer, derived: LayerConstants, traced: Layer, removed: set[int]
) -> int:
    if derived.codes is None:
        found = network.tensors[f"{layer.name}.weight"].numpy()
        expected = _remove_channels(derived.weight, traced, removed)
        _DEPLOYED.check_shape(layer.name, "weight", found, expected)
        wrong = np.abs(found - expected) > LAYER_ROUNDOFF * np.abs(expected)
        _DEPLOYED.check_none(layer.name, "weight", wrong, found, expected)
        return found.size
    assert derived.steps is not None
    steps = derived.steps if derived.steps.shape == (1,) else derived.steps[_kept(traced.out_channels, removed)]
    _DEPLOYED.check_equal(layer.name, "step of the weight", network.steps(layer.name).numpy(), steps)
    codes = network.codes(layer.name).numpy()
    _DEPLOYED.check_equal(layer.name, "code of the weight", codes, _remove_channels(derived.codes, traced, removed))
    return codes.size


def _check_bias(
    network: IntegerNetwork, layer: IntegerLayer, derived: LayerConstants, traced: Layer, removed: set[int]
) -> int:
    bias = network.bias(layer.name)
    codes = derived.integer and not derived.dynamic and not network.adds_bias_to_numbers(layer)
    expected = derived.bias_codes if codes else derived.bias
    if bias is None or expected is None:
        _check_field(layer.name, "bias", bias is not None, expected is not None)
        return 0
    expected = expected if codes else expected.astype(np.float32)
    _DEPLOYED.check_equal(layer.name, "bias", bias.numpy(), expected[_kept(traced.out_channels, removed)])
    return bias.numel()


def _remove_channels(weight: Array, layer: Layer, removed: set[int]) -> Array:
    inputs, outputs = _kept(layer.in_channels, removed), _kept(layer.out_channels, removed)
    if layer.groups > 1:
        return np.asarray(weight[outputs] if layer.depthwise else weight)
    rows, columns = (inputs, outputs) if layer.kind == "conv_transpose" else (outputs, inputs)
    return np.asarray(weight[np.ix_(rows, columns)])


def _kept(channels: tuple[int, ...], removed: set[int]) -> Array:
    return np.array([index for index, channel in enumerate(channels) if channel not in removed], dtype=np.int64)


def _check_modules(small: DeployedNetwork) -> None:
    """The modules of the deployed program hold the constants of the record."""
    network, modules = small.integer, dict[str, Any](small.program.named_modules())
    for layer in network.layers:
        module = modules[target_of(LAYERS, layer.name)]
        _check_field(layer.name, "record of its module", module.layer, layer)
        if layer.arithmetic == "integer" and layer.dynamic:
            for what, found, tensor in (("codes", module.codes, "code"), ("steps", module.steps, "step")):
                expected = network.tensors[f"{layer.name}.{what}"].numpy()
                _DEPLOYED.check_equal(layer.name, f"{tensor} of the weight", _array(found), expected)
        elif layer.arithmetic == "integer":
            assert layer.input is not None
            scale = np.float32(network.grid(layer.input).step) * network.steps(layer.name).numpy()
            if layer.output is not None:
                scale = scale / np.float32(network.grid(layer.output).step)
            _DEPLOYED.check_equal(layer.name, "scale", _array(module.scale).reshape(-1), scale)
            codes = network.codes(layer.name).numpy()
            _DEPLOYED.check_equal(layer.name, "code of the weight", _array(module.codes), codes)
        else:
            _DEPLOYED.check_equal(layer.name, "weight", _array(module.weight), _float_weight(network, layer))
        bias = network.bias(layer.name)
        if bias is not None:
            _DEPLOYED.check_equal(layer.name, "bias", _array(module.bias), bias.numpy())
    for product in network.products:
        module = modules[target_of(PRODUCTS, product.name)]
        _check_field(product.name, "record of its module", module.product, product)
        if product.left is not None and product.right is not None and product.arithmetic == "integer":
            scale = np.array([network.grid(product.left).step], np.float32)
            scale = scale * np.float32(network.grid(product.right).step)
            if product.output is not None:
                scale = scale / np.float32(network.grid(product.output).step)
            _DEPLOYED.check_equal(product.name, "scale", _array(module.scale).reshape(-1), scale)
    for grid in network.structure.grids:
        for folder in (QUANTIZERS, DEQUANTIZERS):
            module = modules.get(target_of(folder, grid.name))
            if module is not None:
                _check_field(grid.name, "record of its module", module.grid, grid)
                step = np.array([grid.step], np.float32)
                _DEPLOYED.check_equal(grid.name, "step", _array(module.step).reshape(-1), step)


def _float_weight(network: IntegerNetwork, layer: IntegerLayer) -> Array:
    if f"{layer.name}.weight" in network.tensors:
        return _array(network.tensors[f"{layer.name}.weight"])
    sizes = [1] * len(layer.weight_shape)
    sizes[output_axis(layer.kind, layer.groups)] = -1
    steps = network.steps(layer.name).numpy()
    codes = network.codes(layer.name).numpy().astype(np.float32)
    if layer.group_size is not None:
        return np.asarray(codes * steps[:, np.arange(codes.shape[1]) // layer.group_size])
    weight: Array = codes * steps.reshape(sizes if steps.size > 1 else ())
    return weight


def _norm_channels(fixed: Compressor, plan: Plan) -> dict[int, Array]:
    """The channels of instance norms that the plan keeps, by the ids of what is added or subtracted there.

    Both are zero for the others, so that a norm makes zeros of the zeros that the layer in front of it emits.
    """
    removed, kept = plan.removed(fixed.topology), dict[int, Array]()
    for layer in fixed.topology.layers:
        if layer.instance_norm is not None:
            norm = fixed.model.get_submodule(layer.instance_norm)
            kept |= dict.fromkeys((id(norm.bias), id(norm.running_mean)), kept_channels(layer, plan, removed))
    return kept


def _check_float_tensors(small: DeployedNetwork, model: nn.Module, kept: Mapping[int, Array]) -> None:
    """Parameters and buffers that stay in float are those of the trained network, with zeros where `kept` is False."""
    state = model.state_dict(keep_vars=True)
    trained = {key_of(name): (name, tensor) for name, tensor in state.items() if isinstance(tensor, Tensor)}
    for plain, tensor in (*small.program.named_parameters(), *small.program.named_buffers()):
        name, expected = trained.get(plain.removeprefix(f"{FLOATS}."), (plain, None))
        if expected is not None:
            numbers = _array(expected)
            numbers = np.where(kept[id(expected)], numbers, np.float32(0)) if id(expected) in kept else numbers
            _DEPLOYED.check_equal(name, "value", _array(tensor), numbers)


def _array(tensor: Any) -> Array:
    array: Array = tensor.detach().cpu().numpy()
    return array


def _check_field(owner: str, what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise VerificationError(
            f"{owner}: {what} is {found} in the deployed network, and plan and weights give {expected}; {_WHOSE}"
        )
