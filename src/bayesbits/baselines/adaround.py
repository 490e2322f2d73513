"""Adaptive rounding (AdaRound): learns which weights are rounded up and which down, on top of any plan.

Rounding every weight to its nearest code is best for each weight alone, but not for the layer, whose inputs add the
errors of many weights up: they should cancel. Layer after layer, in running order, the choice between the code below
and the code above is learned so that the layer's output comes close to that of the float network. `adaround_rounding`
has the mathematics of the choice, and `adaround_reconstruction` learns it for one layer. Each weight is then set to the
center of its learned code, so that the quantizer's ordinary rounding finds this code.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.baselines.adaround_reconstruction import Reconstruction, gather
from bayesbits.baselines.adaround_rounding import AdaRoundConfig, RoundingGrid
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
from bayesbits.compression.compressor import Compressor
from bayesbits.graph.layer_paths import LayerPaths, read_layer_paths
from bayesbits.graph.pointwise import apply_functions
from bayesbits.nn.folding import fold_factor, folded_bias
from bayesbits.nn.layer import AttachedLayer
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Layer
from bayesbits.utils.modes import evaluation_mode

WIDEST = 16  # at more bits half a step is below the precision of float32 weights


@dataclass(frozen=True)
class RoundedLayer:
    """A layer whose rounding was learned."""

    name: str
    """The layer."""
    weights: int
    """The number of its weights."""
    moved: int
    """The number of weights whose code is not the nearest one."""
    nearest_error: float
    """The squared error of the output with every weight at its nearest code: summed over channels, mean over data."""
    error: float
    """The squared error with the learned codes."""


@dataclass(frozen=True)
class AdaRoundReport:
    """The changes that `adaround` made to a network; `print` shows one line for each layer.

    Args:
        plan: The plan of the network, which did not change.
        layers: The layers whose rounding was learned, in running order, with their errors before and after.
        skipped: The other layers, each with the reason.

    Example::

        >>> import bayesbits as bb
        >>> from bayesbits.baselines.adaround import RoundedLayer
        >>> layer = RoundedLayer("0", weights=12, moved=3, nearest_error=0.5, error=0.2)
        >>> print(bb.baselines.AdaRoundReport(bb.Plan({"0.weight": 4}), (layer,), ()))
        0: 3 of 12 codes moved, error 0.5 -> 0.2
    """

    plan: Plan
    """The plan of the network, which did not change."""
    layers: tuple[RoundedLayer, ...]
    """The layers whose rounding was learned, in running order."""
    skipped: tuple[SkippedLayer, ...]
    """The other layers, each with the reason."""

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
    """Learn for every weight of a network with a fixed plan whether it is rounded up or down.

    Only weights change, each by at most one code. A layer keeps its nearest codes where the learned ones are not better
    on the data. Where the call fails, all weights are restored.

    Args:
        compressor: The compressor of a network in evaluation mode, after `Compressor.fix`.
        batches: Batches of inputs, as for `Compressor.calibrate`. All of them are held in memory.
        config: The options; by default `AdaRoundConfig()`.
        reference: The float network whose outputs are approximated. By default it is this network without its
            quantizers. Give a copy made earlier where weights or biases have changed since.
        progress: A function that is called with a layer's name, its number and the number of layers.

    Returns:
        The errors of every layer before and after, and the layers that were skipped.

    Raises:
        ValueError: If the plan is not fixed, the network is in training mode, there are fewer examples than a batch, or
            values are not finite.

    Example::

        >>> import torch
        >>> import bayesbits as bb
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
        >>> x = torch.randn(32, 4)
        >>> compressor = bb.attach(model, x)
        >>> compressor.fix(bb.baselines.uniform(compressor, [x], weights=3))
        >>> report = bb.baselines.adaround(compressor, [x], bb.baselines.AdaRoundConfig(steps=20))
        >>> [layer.name for layer in report.layers]
        ['0', '2']
    """
    config = AdaRoundConfig() if config is None else config
    check_fixed(compressor, "adaptive rounding")
    held = check_batches(batches, "adaptive rounding", least=config.batch_size)
    reference = float_copy(compressor) if reference is None else reference
    paths = _read(compressor, held[0])
    before = {name: parameter.detach().clone() for name, parameter in _weights(compressor)}
    rounded: list[RoundedLayer] = []
    skipped: list[SkippedLayer] = []
    layers = compressor.topology.layers
    try:
        with evaluation_mode(reference):
            for number, layer in enumerate(layers, start=1):
                module = attached_layer(compressor, layer.name)
                reason = _obstacle(compressor, layer, module, paths)
                if reason is None:
                    assert module is not None
                    activations = paths if config.after_activation else None
                    reconstruction = _reconstruction(compressor, layer, module, activations)
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
    """The weights that can be written, by their names."""
    found = []
    for name, layers in compressor.topology.weight_tensors.items():
        layer = attached_layer(compressor, layers[0])
        if layer is not None and layer.stored_weight is not None:
            found.append((name, layer.stored_weight))
    return found


def _read(compressor: Compressor, batch: Any) -> LayerPaths | None:
    """The operations between the layers; None where torch.export cannot read them: then no activation is known."""
    try:
        return read_layer_paths(detached_copy(compressor), tuple(batch) if isinstance(batch, list) else batch)
    except Exception:  # torch.export raises many kinds of errors
        return None


def _obstacle(
    compressor: Compressor, layer: Layer, module: AttachedLayer | None, paths: LayerPaths | None
) -> str | None:
    """Why the rounding of a layer cannot be learned; None where it can."""
    if module is None or module.parts.weight is None:
        return "its weight was left in float when attaching"
    bits = compressor.plan().bits[layer.parameter]
    if module.parts.weight.mode == "off" or bits > WIDEST:
        return f"its weight has {bits} bits, where rounding does not matter"
    if bits == 0:
        return "its weight has 0 bits: it returns nothing"
    if module.stored_weight is None:
        return "its weight is computed from parameters, so that no codes can be written into it"
    owners = [
        owner
        for owner in compressor.model.modules()
        if any(parameter is module.stored_weight for parameter in owner.parameters(recurse=False))
    ]
    found = None if paths is None else paths.layers.get(layer.name)
    if len(owners) > 1 or (found is not None and found.shared_weight):
        return f"its weight {layer.parameter} is tied: other modules that read it would change too"
    return None


def _reconstruction(
    compressor: Compressor, layer: Layer, module: AttachedLayer, paths: LayerPaths | None
) -> Reconstruction:
    """A layer with the operations on its output up to the point where errors are measured."""
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
    return Reconstruction(layer, module, scale, shift, partial(apply_functions, functions))


def _round(
    compressor: Compressor,
    reconstruction: Reconstruction,
    reference: nn.Module,
    batches: list[Any],
    config: AdaRoundConfig,
) -> RoundedLayer:
    """Learn the rounding of one layer and write it into the weight."""
    module, name = reconstruction.module, reconstruction.layer.name
    limit = config.max_gibibytes * 2**30
    data = gather(reconstruction, compressor.model, reference, batches, limit, asymmetric=config.asymmetric)
    grid = RoundingGrid.of(module)
    nearest = module.folded_codes()
    nearest_error = reconstruction.mean_error(module.effective_weight().detach(), data, config.batch_size).item()
    learned = reconstruction.learn(grid, data, config)
    weight = grid.weight(learned)
    error = reconstruction.mean_error(weight, data, config.batch_size).item()
    if not error < nearest_error:
        return RoundedLayer(name, weight.numel(), 0, nearest_error, nearest_error)
    write_codes(module, weight, grid.codes(learned), name)
    moved = int((module.folded_codes() != nearest).sum())
    return RoundedLayer(name, weight.numel(), moved, nearest_error, error)


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
