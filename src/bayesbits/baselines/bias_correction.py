"""Bias correction: rounding shifts the mean of what a layer returns, and its bias takes that shift back.

The mean of layer's output over data, by channel, is E[W x] in the float network and E[W_q x_q] in the quantized one;
the bias gets the difference. With data both are measured, layer after layer, so that each is corrected behind layers
that are corrected already (Nagel et al. 2019, *Data-Free Quantization through Weight Equalization and Bias
Correction*). Without data E[x] is computed where a batch norm and a clipping function stand before the layer: of
x ~ clip(N(beta, gamma^2)) the mean is known, and the shift by rounding the weights is (W_q - W) E[x].

Only biases change; where a layer has none, the shift of its batch norm does.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.baselines.input_means import mean_of_layer, means_before, norm_of
from bayesbits.baselines.layer_bias import LayerBias, check_uncorrected, remember
from bayesbits.baselines.observing import (
    Progress,
    SkippedLayer,
    attached_layer,
    check_batches,
    check_fixed,
    detached_copy,
    float_copy,
    run_to,
    watching_layers,
)
from bayesbits.compression.compressor import Compressor
from bayesbits.graph.layer_paths import read_layer_paths
from bayesbits.nn.layer import AttachedLayer
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Layer
from bayesbits.utils.batches import call_model
from bayesbits.utils.modes import evaluation_mode


@dataclass(frozen=True)
class CorrectedLayer:
    """A layer whose bias was corrected."""

    name: str
    """The layer."""
    parameter: str
    """What was changed: the layer's bias, or the shift of its batch norm."""
    shift: float
    """The root of the mean square, over channels, of the shift that was taken back."""


@dataclass(frozen=True)
class BiasCorrectionReport:
    """What bias correction did to a network."""

    plan: Plan
    """The plan of the network, as it was."""
    layers: tuple[CorrectedLayer, ...]
    """What was corrected, in running order."""
    skipped: tuple[SkippedLayer, ...]
    """What was not, and why."""

    def __str__(self) -> str:
        lines = [f"{layer.name}: a shift of {layer.shift:.4g} taken back by {layer.parameter}" for layer in self.layers]
        return "\n".join(lines + [f"{entry.name} is left as it was: {entry.reason}" for entry in self.skipped])


def correct_biases(
    compressor: Compressor,
    batches: Iterable[Any],
    *,
    reference: nn.Module | None = None,
    progress: Progress | None = None,
) -> BiasCorrectionReport:
    """Correct the biases of a network whose plan is fixed, by what rounding does to the means of its layers on data.

    Batches are as for `calibrate`. They are held and run through the network up to each layer once. `reference` is the
    float network to agree with, where weights or biases have been changed since, as by `adaround` or by an earlier
    correction; without it, it is this network without its quantizers. `progress` is called with a layer's name, its
    number and the number of layers. Where this fails, all biases are what they were.
    """
    check_fixed(compressor, "bias correction")
    if reference is None:
        check_uncorrected(compressor, "pass reference=, a copy of the network made before")
        reference = float_copy(compressor)
    held = check_batches(batches, "bias correction")
    biases, reasons = _biases(compressor)
    wanted = _float_means(reference, biases.values(), held)
    corrected: list[CorrectedLayer] = []
    layers = compressor.topology.layers
    with _remembered(compressor, list(biases.values())):
        for number, layer in enumerate(layers, start=1):
            bias = biases.get(layer.name)
            if bias is not None:
                mean = bias.mean()
                for batch in held:
                    run_to(compressor.model, layer, batch, mean.see, place=bias.place)
                shift = mean.read() - wanted[layer.name]
                bias.hold_rounding()
                corrected.append(CorrectedLayer(layer.name, bias.name, bias.take_back(shift)))
            if progress is not None:
                progress(layer.name, number, len(layers))
    return _report(compressor, corrected, reasons)


def correct_biases_without_data(compressor: Compressor, example_inputs: Any) -> BiasCorrectionReport:
    """Correct the biases of a network whose plan is fixed, from the statistics of its batch norms alone.

    Layers that do not stand behind a batch norm and a clipping function (ReLU, ReLU6, none) are listed with the reason.
    `example_inputs` are as for `attach`, and only read the network. The zeros of padding are not accounted for. It is
    done once: corrected biases would be corrected by the same again.
    """
    check_fixed(compressor, "bias correction")
    check_uncorrected(compressor, "use correct_biases with data and reference=, a copy of the network made before")
    copied = detached_copy(compressor)
    try:
        between = read_layer_paths(copied, example_inputs)
    except Exception as error:
        raise ValueError(
            "bias correction without data has to see what lies before a layer, and torch.export could not read this "
            "network: use correct_biases with data"
        ) from error
    channels = between.scalable_channels()
    biases, reasons = _biases(compressor)
    shifts: dict[str, Tensor] = {}  # all of them first: the means behind a corrected layer are those of the float one
    for layer in compressor.topology.layers:
        if layer.name not in biases:
            continue
        inputs = means_before(compressor, between, channels, layer)
        if isinstance(inputs, str):
            reasons[layer.name] = inputs
            continue
        module = biases[layer.name].module
        added = (module.effective_weight() - module.weight).detach().double()
        shifts[layer.name] = mean_of_layer(between, layer, added, inputs.to(added.device))
    corrected = []
    with _remembered(compressor, [biases[name] for name in shifts]):
        for name, shift in shifts.items():
            bias = biases[name]
            corrected.append(CorrectedLayer(name, bias.name, bias.take_back(bias.behind_norm(shift))))
    return _report(compressor, corrected, reasons)


def _biases(compressor: Compressor) -> tuple[dict[str, LayerBias], dict[str, str]]:
    """What is corrected, by layer, and why the other layers are not."""
    biases: dict[str, LayerBias] = {}
    reasons: dict[str, str] = {}
    for layer in compressor.topology.layers:
        module = attached_layer(compressor, layer.name)
        reason = _obstacle(compressor, layer, module)
        if reason is None:
            assert module is not None
            biases[layer.name] = LayerBias(compressor, layer, module)
        else:
            reasons[layer.name] = reason
    return biases, reasons


def _report(compressor: Compressor, corrected: list[CorrectedLayer], reasons: dict[str, str]) -> BiasCorrectionReport:
    names = [layer.name for layer in compressor.topology.layers if layer.name in reasons]
    skipped = [SkippedLayer(name, reasons[name]) for name in names]
    return BiasCorrectionReport(compressor.plan(), tuple(corrected), tuple(skipped))


def _obstacle(compressor: Compressor, layer: Layer, module: AttachedLayer | None) -> str | None:
    """Why a layer's bias is not corrected, if it is not."""
    if module is None:
        return "it was left in float when attaching"
    if compressor.plan().bits[layer.parameter] == 0:
        return "its weight has 0 bits: it returns nothing"
    norm = norm_of(compressor, layer)
    if module.bias is None and (norm is None or norm.bias is None):
        return "neither it nor a batch norm of its own has a bias"
    return None


def _float_means(reference: nn.Module, biases: Iterable[LayerBias], batches: list[Any]) -> dict[str, Tensor]:
    """The means behind all biases of the float network, by layer, in one pass."""
    means = {bias.layer.name: bias.mean() for bias in biases}
    observers = {mean.bias.place: mean.see for mean in means.values()}
    with evaluation_mode(reference), watching_layers(reference, observers):
        for batch in batches:
            call_model(reference, batch)
    return {name: mean.read() for name, mean in means.items()}


@contextmanager
def _remembered(compressor: Compressor, biases: list[LayerBias]) -> Iterator[None]:
    """What is corrected inside of the block is remembered as that; where the block fails, nothing is corrected."""
    before = [bias.parameter.detach().clone() for bias in biases]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for bias, value in zip(biases, before, strict=True):
                bias.parameter.copy_(value)
        raise
    remember(compressor, biases)
