"""Adaptive rounding (AdaRound): which weights are rounded up and which down is learned, on top of any plan.

Rounding every weight to its nearest code is best for each of them and not for the layer: errors that a layer's inputs
bring together should cancel. Layer after layer, in running order, the choice between the code below and the code above
is learned so that the layer's output comes close to the float network's (see `rounding` and `reconstruction`). It ends
in new weights, each at the center of its learned code, so that the quantizer's ordinary rounding gives just these.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.baselines.gathering import gather
from bayesbits.baselines.input_means import norm_of
from bayesbits.baselines.observing import (
    Progress,
    SkippedLayer,
    attached_layer,
    check_batches,
    check_fixed,
    detached_copy,
    float_copy,
)
from bayesbits.baselines.reconstruction import AdaRoundConfig, Reconstruction
from bayesbits.baselines.rounding import RoundingGrid
from bayesbits.compression.compressor import Compressor
from bayesbits.graph.layer_paths import LayerPaths, read_layer_paths
from bayesbits.graph.pointwise import apply_functions
from bayesbits.nn.folding import fold_factor, folded_bias
from bayesbits.nn.layer import AttachedLayer
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Layer
from bayesbits.utils.modes import evaluation_mode

WIDEST = 16  # in wider codes half a step is lost in the weight's own precision


@dataclass(frozen=True)
class RoundedLayer:
    """A layer whose rounding was learned."""

    name: str
    """The layer."""
    weights: int
    """How many weights it has."""
    moved: int
    """How many of them have another code than the nearest."""
    nearest_error: float
    """The squared error of its output with every weight at its nearest code: summed over channels, mean over data."""
    error: float
    """The same with the codes that it has now."""


@dataclass(frozen=True)
class AdaRoundReport:
    """What adaptive rounding did to a network."""

    plan: Plan
    """The plan of the network, as it was."""
    layers: tuple[RoundedLayer, ...]
    """The layers whose rounding was learned, in running order."""
    skipped: tuple[SkippedLayer, ...]
    """The others, and why."""

    def __str__(self) -> str:
        lines = [
            f"{layer.name}: {layer.moved} of {layer.weights} codes moved, "
            f"error {layer.nearest_error:.4g} -> {layer.error:.4g}"
            for layer in self.layers
        ]
        return "\n".join(lines + [f"{entry.name} is left as it was: {entry.reason}" for entry in self.skipped])


def adaround(
    compressor: Compressor,
    batches: Iterable[Any],
    config: AdaRoundConfig | None = None,
    *,
    reference: nn.Module | None = None,
    progress: Progress | None = None,
) -> AdaRoundReport:
    """Learn the rounding of the weights of a network whose plan is fixed; only weights change, by a code at most.

    Batches are as for `calibrate`; they are held. `reference` is the float network to agree with, where this one's
    weights or biases have been changed since; without it, it is this network without its quantizers. `progress` is
    called with a layer's name, its number and the number of layers. Where a layer's learned codes do no better than
    the nearest ones on the data, those stay. Where this fails, all weights are what they were.
    """
    config = AdaRoundConfig() if config is None else config
    check_fixed(compressor, "adaptive rounding")
    held = check_batches(batches, "adaptive rounding", least=config.batch)
    reference = float_copy(compressor) if reference is None else reference
    between = _read(compressor, held[0])
    before = {name: parameter.detach().clone() for name, parameter in _weights(compressor)}
    rounded: list[RoundedLayer] = []
    skipped: list[SkippedLayer] = []
    layers = compressor.topology.layers
    try:
        with evaluation_mode(reference):
            for number, layer in enumerate(layers, start=1):
                module = attached_layer(compressor, layer.name)
                reason = _obstacle(compressor, layer, module, between)
                if reason is None:
                    assert module is not None
                    reconstruction = _reconstruction(compressor, layer, module, between if config.functions else None)
                    rounded.append(_round(compressor, reconstruction, reference, held, config))
                else:
                    skipped.append(SkippedLayer(layer.name, reason))
                if progress is not None:
                    progress(layer.name, number, len(layers))
    except BaseException:
        with torch.no_grad():
            for name, parameter in _weights(compressor):
                parameter.copy_(before[name])
        raise
    return AdaRoundReport(compressor.plan(), tuple(rounded), tuple(skipped))


def _weights(compressor: Compressor) -> list[tuple[str, nn.Parameter]]:
    return [(name, compressor.model.get_parameter(name)) for name in compressor.topology.weight_tensors]


def _read(compressor: Compressor, batch: Any) -> LayerPaths | None:
    """What lies between the layers; None where torch.export cannot read that: then no functions are known."""
    try:
        return read_layer_paths(detached_copy(compressor), tuple(batch) if isinstance(batch, list) else batch)
    except Exception:  # torch.export raises many kinds of errors
        return None


def _obstacle(
    compressor: Compressor, layer: Layer, module: AttachedLayer | None, between: LayerPaths | None
) -> str | None:
    """Why the rounding of a layer is not learned, if it is not."""
    if module is None or module.parts.weight is None:
        return "its weight was left in float when attaching"
    bits = compressor.plan().bits[layer.parameter]
    if module.parts.weight.mode == "off" or bits > WIDEST:
        return f"its weight has {bits} bits, where rounding does not matter"
    if bits == 0:
        return "its weight has 0 bits: it returns nothing"
    owners = [
        owner
        for owner in compressor.model.modules()
        if any(parameter is module.weight for parameter in owner.parameters(recurse=False))
    ]
    found = None if between is None else between.layers.get(layer.name)
    if len(owners) > 1 or (found is not None and found.shared_weight):
        return f"its weight {layer.parameter} is tied: what else reads it would be changed too"
    return None


def _reconstruction(
    compressor: Compressor, layer: Layer, module: AttachedLayer, between: LayerPaths | None
) -> Reconstruction:
    """What becomes of a layer's output up to the place where errors are measured."""
    scale, shift = None, None
    norm, gate = norm_of(compressor, layer), compressor.attachment.gate_of(layer.name)
    if norm is not None:
        scale = fold_factor(norm)
        shift = folded_bias(norm, scale, None, norm.bias).detach()
    if gate is not None:
        values = gate.values().detach().to(module.weight.dtype)
        scale = values if scale is None else scale * values
        shift = None if shift is None else shift * values
    functions = between.functions_after(layer.name) if between is not None and layer.name in between.layers else ()
    return Reconstruction(layer, module, scale, shift, partial(apply_functions, functions))


def _round(
    compressor: Compressor,
    reconstruction: Reconstruction,
    reference: nn.Module,
    batches: list[Any],
    config: AdaRoundConfig,
) -> RoundedLayer:
    """Learn one layer's rounding, and write it into the weight."""
    module, name = reconstruction.module, reconstruction.layer.name
    limit = config.gibibytes * 2**30
    data = gather(reconstruction, compressor.model, reference, batches, limit, asymmetric=config.asymmetric)
    grid = RoundingGrid.of(module)
    nearest = module.folded_codes()
    nearest_error = reconstruction.mean_error(module.effective_weight().detach(), data, config.batch).item()
    learned = reconstruction.learn(grid, data, config)
    weight = grid.weight(learned)
    error = reconstruction.mean_error(weight, data, config.batch).item()
    if not error < nearest_error:
        return RoundedLayer(name, weight.numel(), 0, nearest_error, nearest_error)
    write_codes(module, weight, grid.codes(learned), name)
    moved = int((module.folded_codes() != nearest).sum())
    return RoundedLayer(name, weight.numel(), moved, nearest_error, error)


@torch.no_grad()
def write_codes(module: AttachedLayer, weight: Tensor, codes: Tensor, name: str) -> None:
    """Give a layer new weights, and make sure that the quantizer's own rounding finds these codes in them."""
    factor = module.fold_factor()
    signs = torch.ones((), device=codes.device) if factor is None else module.along_outputs(factor.sign())
    module.weight.copy_(weight)
    wrong = module.folded_codes() != codes * signs
    if bool(wrong.any()):
        raise RuntimeError(
            f"{name}: a weight in {module.weight.dtype} does not hold {int(wrong.sum())} of its learned codes; "
            "keep the network in float32 while rounding is learned"
        )
