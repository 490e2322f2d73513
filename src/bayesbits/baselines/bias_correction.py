"""Bias correction: rounding shifts the mean of what a layer returns, and its bias takes that shift back.

The mean of layer's output over data, by channel, is E[W x] in the float network and E[W_q x_q] in the quantized one;
the bias gets the difference. With data both are measured, layer after layer, so that each is corrected behind layers
that are corrected already (Nagel et al. 2019, *Data-Free Quantization through Weight Equalization and Bias
Correction*). Without data E[x] is computed where a batch norm and a clipping function stand before the layer: of
x ~ clip(N(beta, gamma^2)) the mean is known, and the shift by rounding the weights is (W_q - W) E[x].

Only biases change; where a layer has none, the shift of its batch norm does.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.baselines.input_means import mean_of_layer, means_before, norm_of
from bayesbits.baselines.observing import (
    Progress,
    SkippedLayer,
    attached_layer,
    channel_axis,
    check_batches,
    check_fixed,
    detached_copy,
    float_copy,
    run_to,
    watching_layers,
)
from bayesbits.calibration import run_on
from bayesbits.compressor import Compressor
from bayesbits.graph.between import read_between
from bayesbits.graph.exported import evaluation_form
from bayesbits.nn.attached import AttachedLayer, on_grid
from bayesbits.plan import Plan
from bayesbits.topology import Layer


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


def correct_biases(
    compressor: Compressor,
    batches: Iterable[Any],
    *,
    reference: nn.Module | None = None,
    progress: Progress | None = None,
) -> BiasCorrectionReport:
    """Correct the biases of a network whose plan is fixed, by what rounding does to the means of its layers on data.

    Batches are as for `calibrate`. They are held and run through the network up to each layer once. `reference` is the
    float network to agree with, where the weights have been changed since, as by `adaround`; without it, it is this
    network without its quantizers. `progress` is called with a layer's name, its number and the number of layers.
    """
    check_fixed(compressor, "bias correction")
    held = check_batches(batches, "bias correction")
    layers = compressor.topology.layers
    wanted = _float_means(float_copy(compressor) if reference is None else reference, layers, held)
    corrected: list[CorrectedLayer] = []
    skipped: list[SkippedLayer] = []
    for number, layer in enumerate(layers, start=1):
        module = attached_layer(compressor, layer.name)
        reason = _obstacle(compressor, layer, module)
        if reason is None:
            assert module is not None
            mean = _Mean(layer)
            for batch in held:
                run_to(compressor.model, layer, batch, mean.see)
            corrected.append(_take_back(compressor, layer, module, mean.read() - wanted[layer.name].read()))
        else:
            skipped.append(SkippedLayer(layer.name, reason))
        if progress is not None:
            progress(layer.name, number, len(layers))
    return BiasCorrectionReport(compressor.plan(), tuple(corrected), tuple(skipped))


def correct_biases_without_data(compressor: Compressor, example_inputs: Any) -> BiasCorrectionReport:
    """Correct the biases of a network whose plan is fixed, from the statistics of its batch norms alone.

    Layers that do not stand behind a batch norm and a clipping function (ReLU, ReLU6, none) are listed with the reason.
    `example_inputs` are as for `attach`, and only read the network. The zeros of padding are not accounted for.
    """
    check_fixed(compressor, "bias correction")
    copied = detached_copy(compressor)
    try:
        between = read_between(copied, example_inputs)
    except Exception as error:
        raise ValueError(
            "bias correction without data has to see what lies before a layer, and torch.export could not read this "
            "network: use correct_biases with data"
        ) from error
    channels = between.scalable_channels()
    corrected: list[CorrectedLayer] = []
    skipped: list[SkippedLayer] = []
    for layer in compressor.topology.layers:
        module = attached_layer(compressor, layer.name)
        reason = _obstacle(compressor, layer, module)
        inputs = reason or means_before(compressor, between, channels, layer)
        if isinstance(inputs, str):
            skipped.append(SkippedLayer(layer.name, inputs))
            continue
        assert module is not None
        added = (module.effective_weight() - module.weight).detach().double()
        shift = mean_of_layer(between, layer, added, inputs.to(added.device))
        corrected.append(_take_back(compressor, layer, module, shift))
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


class _Mean:
    """The mean of what a layer returns, by channel, over batches, calls and positions."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.total: Tensor | None = None
        self.count = 0

    def see(self, _: Tensor, output: Tensor) -> None:
        axis = channel_axis(self.layer, output) % output.dim()
        added = output.detach().double().movedim(axis, 0).flatten(1).sum(dim=1)
        self.total = added if self.total is None else self.total + added
        self.count += output.numel() // output.shape[axis]

    def read(self) -> Tensor:
        if self.total is None or self.count == 0:
            raise ValueError(f"no values reached {self.layer.name} on these batches")
        mean = self.total / self.count
        if not bool(torch.isfinite(mean).all()):
            raise ValueError(f"what {self.layer.name} returns on these batches has a mean that is not finite")
        return mean


def _float_means(reference: nn.Module, layers: Iterable[Layer], batches: list[Any]) -> dict[str, _Mean]:
    """The means of all layers of the float network, in one pass."""
    means = {layer.name: _Mean(layer) for layer in layers}
    with evaluation_form(reference), watching_layers(reference, {name: mean.see for name, mean in means.items()}):
        for batch in batches:
            run_on(reference, batch)
    return means


@torch.no_grad()
def _take_back(compressor: Compressor, layer: Layer, module: AttachedLayer, shift: Tensor) -> CorrectedLayer:
    """Subtract a shift of a layer's output from its bias, or through the factor of its batch norm from that one's."""
    if module.bias is not None:
        step = module.bias_step() if module.parts.rounds_bias else None
        if step is not None:
            module.bias.copy_(on_grid(module.bias, step))  # what was measured has the rounded one in it
        module.bias.sub_(shift.to(module.bias.dtype))
        name = f"{layer.name}.bias"
    else:
        norm = norm_of(compressor, layer)
        assert norm is not None
        assert norm.running_var is not None
        factor = torch.rsqrt(norm.running_var.double() + norm.eps)
        shift = shift * (factor if norm.weight is None else factor * norm.weight.double())
        norm.bias.sub_(shift.to(norm.bias.dtype))
        name = f"{layer.norm}.bias"
    return CorrectedLayer(layer.name, name, shift.square().mean().sqrt().item())
