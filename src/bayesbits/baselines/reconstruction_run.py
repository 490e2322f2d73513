"""Reconstruction of a network, unit after unit, which AdaRound and block reconstruction have in common."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.baselines.adaround_rounding import AdaRoundConfig, RoundingGrid
from bayesbits.baselines.changed_parameters import ROUNDED, check_unchanged, remember
from bayesbits.baselines.layerwise import (
    Progress,
    SkippedLayer,
    attached_layer,
    check_batches,
    check_fixed,
    detached_copy,
    float_copy,
    norm_of,
)
from bayesbits.baselines.reconstruction_blocks import block_unit, find_blocks
from bayesbits.baselines.reconstruction_examples import Gathering, Networks, gather_block, gather_layer
from bayesbits.baselines.reconstruction_learning import learn, mean_error
from bayesbits.baselines.reconstruction_units import BlockUnit, LayerUnit, Unit
from bayesbits.baselines.rounding_report import RoundedUnit, RoundingReport
from bayesbits.baselines.waiting_passes import waiting_passes
from bayesbits.compression.compressor import Compressor
from bayesbits.graph.layer_paths import LayerPaths, read_layer_paths
from bayesbits.graph.pointwise import apply_functions
from bayesbits.nn import Quantizer
from bayesbits.nn.folding import fold_factor, folded_bias
from bayesbits.nn.layer import AttachedLayer
from bayesbits.records.topology import Layer
from bayesbits.utils.modes import evaluation_mode
from bayesbits.utils.progress import progress_bar

WIDEST = 16  # at more bits half a step is below the precision of float32 weights


@dataclass(frozen=True)
class Settings:
    """What is learned, and from what."""

    config: AdaRoundConfig
    drop: float = 0.0
    """The probability with which an activation is not quantized."""
    activation_ranges: bool = False
    """Whether the ranges of activations learn, too, and not those of weights alone."""
    blocks: bool = True
    """Whether residual blocks are learned as a whole, or every layer by itself."""


def reconstruct_network(
    compressor: Compressor,
    batches: Iterable[Any],
    settings: Settings,
    reference: nn.Module | None,
    progress: Progress | None,
    method: str,
) -> RoundingReport:
    """Check the arguments, and learn what can be learned."""
    check_fixed(compressor, method)
    held = check_batches(batches, method, least=settings.config.batch_size)
    if reference is None:
        check_unchanged(compressor, "pass reference=, a copy of the network made before")
        reference = float_copy(compressor)
    paths = read_paths(compressor, held[0])
    reasons = obstacles(compressor, paths)
    units = _units(compressor, settings, reference, held[0], paths, reasons)
    rounded = reconstruct_units(compressor, units, held, reference, settings, progress)
    return RoundingReport(compressor.plan(), rounded, skipped_layers(reasons))


def _units(
    compressor: Compressor,
    settings: Settings,
    reference: nn.Module,
    batch: Any,
    paths: LayerPaths | None,
    reasons: Mapping[str, str | None],
) -> list[Unit]:
    """The blocks, where they are learned as a whole, and all layers outside of them, in running order."""
    blocks: dict[str, tuple[str, ...]] = {}
    if settings.blocks:
        with evaluation_mode(reference):
            blocks = find_blocks(compressor, reference, batch)
    block_of = {layer: name for name, layers in blocks.items() for layer in layers}
    biases = own_biases(compressor)
    units: dict[str, Unit] = {}
    for layer in compressor.topology.layers:
        name = block_of.get(layer.name, layer.name)
        if name in units or reasons[layer.name] is not None:
            continue
        if name in blocks:
            units[name] = block_unit(compressor, name, [one for one in blocks[name] if reasons[one] is None])
        else:
            after = paths if settings.config.after_activation else None
            units[name] = layer_unit(compressor, layer, after, biases.get(name))
    return list(units.values())


def reconstruct_units(
    compressor: Compressor,
    units: Sequence[Unit],
    batches: list[Any],
    reference: nn.Module,
    settings: Settings,
    progress: Progress | None,
) -> tuple[RoundedUnit, ...]:
    """Learn unit after unit, in running order; where this fails, weights and ranges are restored."""
    names = [unit.name for unit in units if isinstance(unit, BlockUnit) or unit.layer.calls == 1]
    rounded: list[RoundedUnit] = []
    shared = {name for family in compressor.topology.shared_ranges for name in family}
    quantizers = compressor.attachment.quantizers
    ranges_done = {id(one) for one in _ranges([quantizers[name] for name in shared if name in quantizers])}
    with (
        changing_parameters(compressor),
        evaluation_mode(reference),
        waiting_passes(reference, batches, names) as reference_passes,
        waiting_passes(compressor.model, batches, names) as passes,
        progress_bar("reconstruction", len(units)) as advance,
    ):
        networks = Networks(compressor.model, reference, batches, passes, reference_passes)
        for number, unit in enumerate(units, start=1):
            rounded.append(_reconstruct(unit, networks, settings, ranges_done))
            advance(unit.name)
            if progress is not None:
                progress(unit.name, number, len(units))
    return tuple(rounded)


def _reconstruct(unit: Unit, networks: Networks, settings: Settings, ranges_done: set[int]) -> RoundedUnit:
    """Learn the rounding of one unit, its ranges and its bias, and write them into the network."""
    config = settings.config
    modules = [module for _, module in unit.layers]
    quantizers = [module.parts.weight for module in modules if module.parts.weight is not None]
    inputs_learn = settings.activation_ranges and config.range_lr > 0
    quantizers += unit.quantizers if inputs_learn else []
    ranges = [one for one in _ranges(quantizers) if id(one) not in ranges_done] if config.range_lr else []
    ranges_done |= set(map(id, ranges))
    gathering = Gathering(
        limit=config.max_gibibytes * 2**30, asymmetric=config.asymmetric, float_inputs=settings.drop > 0,
        quantize=not settings.drop and not inputs_learn, seed=config.seed,
    )  # fmt: skip
    with torch.no_grad():
        if isinstance(unit, LayerUnit):
            data = gather_layer(unit, networks, gathering)
        else:
            data = gather_block(unit, networks, gathering)
    grids = [RoundingGrid.of(module) for module in modules]
    nearest = [module.folded_codes() for module in modules]
    first = [module.effective_weight().detach() for module in modules]
    changing = [*ranges, *([unit.bias] if isinstance(unit, LayerUnit) and unit.bias is not None else [])]
    before = [one.detach().clone() for one in changing]
    nearest_error = mean_error(unit, first, data, config.batch_size)
    learned = learn(unit, grids, ranges, data, config, drop=settings.drop)
    if isinstance(unit, LayerUnit) and learned.bias is not None:
        unit.add_to_bias(learned.bias)
    # The range of a weight decides about its steps; bias and input do, too, where channels are widened for their bias.
    grids = [replace(grid, step=RoundingGrid.of(module).step) for grid, module in zip(grids, modules, strict=True)]
    weights = [grid.weight(up) for grid, up in zip(grids, learned.up, strict=True)]
    error = mean_error(unit, weights, data, config.batch_size)
    errors = torch.stack([nearest_error, error]).tolist()
    moved = 0
    if errors[1] < errors[0]:
        for (name, module), grid, weight, up, codes in zip(
            unit.layers, grids, weights, learned.up, nearest, strict=True
        ):
            write_codes(module, weight, grid.codes(up), name)
            moved += int((module.folded_codes() != codes).sum())
    else:
        errors[1] = errors[0]
        with torch.no_grad():
            for one, value in zip(changing, before, strict=True):
                one.copy_(value)
    count = sum(weight.numel() for weight in weights)
    return RoundedUnit(unit.name, count, moved, errors[0], errors[1], tuple(name for name, _ in unit.layers))


def _ranges(quantizers: Sequence[Quantizer]) -> list[nn.Parameter]:
    """The parameters of the ranges of quantizers that learn them, and that round."""
    return [
        parameter
        for quantizer in quantizers
        if quantizer.mode == "fixed" and quantizer.fixed_bits and quantizer.learn_range
        for name, parameter in quantizer.named_parameters()
        if not name.startswith("gates.")
    ]


@contextmanager
def changing_parameters(compressor: Compressor) -> Iterator[None]:
    """Remembers the weights and biases that the block changes; if it raises, they and all ranges are as before."""
    layers = [attached_layer(compressor, names[0]) for names in compressor.topology.weight_tensors.values()]
    stored = [None if layer is None else layer.stored_weight for layer in layers]
    own = [parameter for parameter in (*stored, *own_biases(compressor).values()) if parameter is not None]
    parameters = own + _ranges(list(compressor.attachment.quantizers.values()))
    before = [parameter.detach().clone() for parameter in parameters]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)
        raise
    changed = [one for one, value in zip(own, before, strict=False) if not torch.equal(one.detach(), value)]
    remember(compressor, changed, ROUNDED)


def read_paths(compressor: Compressor, batch: Any) -> LayerPaths | None:
    """The operations between the layers; None where torch.export cannot read them: then no activation is known."""
    try:
        return read_layer_paths(detached_copy(compressor), tuple(batch) if isinstance(batch, list) else batch)
    except Exception:  # torch.export raises many kinds of errors
        return None


def obstacles(compressor: Compressor, paths: LayerPaths | None) -> dict[str, str | None]:
    """For every layer why its rounding cannot be learned; None where it can."""
    bits = compressor.plan().bits
    owners = Counter(
        id(parameter) for module in compressor.model.modules() for parameter in module.parameters(recurse=False)
    )
    return {
        layer.name: _obstacle(compressor, layer, bits[layer.parameter], paths, owners)
        for layer in compressor.topology.layers
    }


def skipped_layers(reasons: Mapping[str, str | None]) -> tuple[SkippedLayer, ...]:
    """The layers that `obstacles` gives a reason for."""
    return tuple(SkippedLayer(name, reason) for name, reason in reasons.items() if reason is not None)


def _obstacle(
    compressor: Compressor, layer: Layer, bits: int, paths: LayerPaths | None, owners: Mapping[int, int]
) -> str | None:
    """`owners` has the number of modules that own each parameter, by its id."""
    module = attached_layer(compressor, layer.name)
    if module is None or module.parts.weight is None:
        return "its weight was left in float when attaching"
    if module.parts.weight.mode == "off" or bits > WIDEST:
        return f"its weight has {bits} bits, where rounding does not matter"
    if bits == 0:
        return "its weight has 0 bits: it returns nothing"
    if module.stored_weight is None:
        return "its weight is computed from parameters, so that no codes can be written into it"
    found = None if paths is None else paths.layers.get(layer.name)
    if owners[id(module.stored_weight)] > 1 or (found is not None and found.shared_weight):
        return f"its weight {layer.parameter} is tied: other modules that read it would change too"
    return None


def layer_unit(compressor: Compressor, layer: Layer, paths: LayerPaths | None, bias: nn.Parameter | None) -> LayerUnit:
    """A layer with the operations on its output up to the point where errors are measured; `bias` may learn."""
    module = attached_layer(compressor, layer.name)
    assert module is not None
    scale, shift = None, None
    norm, gate = norm_of(compressor.model, layer), compressor.attachment.gate_of(layer.name)
    if norm is not None:
        scale = fold_factor(norm)
        shift = folded_bias(norm, scale, None, norm.bias).detach()
    if gate is not None:
        values = gate.values().detach().to(module.weight.dtype)
        scale = values if scale is None else scale * values
        shift = None if shift is None else shift * values
    functions = paths.functions_after(layer.name) if paths is not None and layer.name in paths.layers else ()
    return LayerUnit(layer, module, scale, shift, partial(apply_functions, functions), bias)


def own_biases(compressor: Compressor) -> dict[str, nn.Parameter]:
    """By the layer's name, what is added to its output behind its scale and before its function.

    Layers to which nothing is added are not there, nor those whose bias other layers add, too.
    """
    added = {layer.name: _added(compressor, layer) for layer in compressor.topology.layers}
    layers = Counter(id(bias) for bias in added.values())
    return {name: bias for name, bias in added.items() if bias is not None and layers[id(bias)] == 1}


def _added(compressor: Compressor, layer: Layer) -> nn.Parameter | None:
    module, norm = attached_layer(compressor, layer.name), norm_of(compressor.model, layer)
    if norm is not None:
        bias: nn.Parameter | None = norm.bias
        return bias
    return None if module is None else module.stored_bias


@torch.no_grad()
def write_codes(module: AttachedLayer, weight: Tensor, codes: Tensor, name: str) -> None:
    """Set a layer's weight; raises unless the quantizer's own rounding gives these codes."""
    factor = module.fold_factor()
    signs = torch.ones((), device=codes.device) if factor is None else module.along_outputs(factor.sign())
    module.weight.copy_(weight)
    wrong = module.folded_codes() != codes * signs
    if bool(wrong.any()):
        raise RuntimeError(
            f"{name}: a weight in {module.weight.dtype} does not hold {int(wrong.sum())} of its learned codes; "
            "keep the network in float32 while rounding is learned"
        )
