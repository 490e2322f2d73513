"""The mean of a layer's input, from the statistics of the batch norm before it.

The output of a batch norm has mean beta and standard deviation |gamma| in every channel. For a normal distribution the
mean after a clipping function such as ReLU is known, and averaging and moving data keep it.
"""

import math
from typing import Any

import torch
from torch import Tensor, fx

from bayesbits.baselines.layerwise import norm_of
from bayesbits.baselines.weight_channels import by_channels
from bayesbits.compression.compressor import Compressor
from bayesbits.graph.channel_rules import MOVES, SAME
from bayesbits.graph.channels import Channels
from bayesbits.graph.exported_program import arguments, operation
from bayesbits.graph.layer_paths import LayerPath, LayerPaths
from bayesbits.graph.pointwise import apply_functions, is_function
from bayesbits.records.topology import Layer

# Operations that keep the mean of every channel, beside those that move data.
MEANS = ("mean", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
         "adaptive_avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d")  # fmt: skip


def means_before(compressor: Compressor, paths: LayerPaths, channels: Channels, layer: Layer) -> Tensor | str:
    """The mean of every input channel of a layer, or the reason why it is not known."""
    path = paths.path_to(layer.name)
    if path is None:
        return "no single layer with a batch norm comes before it"
    norm = norm_of(compressor.model, compressor.topology.layer(path.producer))
    if norm is None or norm.weight is None or norm.bias is None:
        return f"{path.producer}, which comes before it, has no batch norm with a scale and a shift"
    bounds = _clipping(path)
    if isinstance(bounds, str):
        return bounds
    gate = compressor.attachment.gate_of(path.producer)
    kept = torch.ones_like(norm.weight) if gate is None else gate.values().to(norm.weight)
    mean, deviation = (norm.bias * kept).detach(), (norm.weight * kept).detach().abs()
    by_output = clipped_normal_mean(mean, deviation, *bounds).tolist()
    of_class = dict(zip(channels.outputs[path.producer], by_output, strict=True))
    return torch.tensor([of_class[one] for one in channels.inputs[layer.name]], dtype=torch.float64)


def _clipping(path: LayerPath) -> tuple[float, float] | str:
    """The bounds to which the functions on a path clip, found by applying them to probes; or why they do not clip."""
    functions: list[fx.Node] = []
    averaged = False
    for node in path.operations:
        name = operation(node)
        if is_function(node) and not averaged:
            functions.append(node)
        elif name in MEANS:
            averaged = True
        elif name not in (*MOVES, *SAME):
            return f"{name.lstrip('_')} comes before it, after which means are not known"
    probes = torch.cat([torch.linspace(-40, 40, 321), torch.tensor([-1e6, 1e6])]).double()
    outcome = apply_functions(functions, probes)
    low, high = outcome[-2].item(), outcome[-1].item()
    if not torch.equal(outcome, probes.clamp(low, high)):
        return f"{' and '.join(operation(node) for node in functions)} before it does not clip"
    return (low if low > -1e6 else -torch.inf), (high if high < 1e6 else torch.inf)


def mean_of_layer(paths: LayerPaths, layer: Layer, weight: Tensor, inputs: Tensor) -> Tensor:
    """The mean of the output of a layer with this weight, by channel, from the means of its input channels."""
    found = paths.layers[layer.name]
    sums = by_channels(found, weight).sum(dim=2)
    grouped = inputs.reshape(layer.groups, 1, -1).expand(-1, found.outputs // layer.groups, -1).reshape(sums.shape)
    mean = (sums * grouped).sum(dim=1)
    if layer.kind == "conv_transpose":  # only one in prod(stride) places of the kernel reaches an output position
        stride: Any = arguments(found.calls[0])["stride"]
        mean = mean / torch.tensor(stride).prod().item()
    return mean


def clipped_normal_mean(mean: Tensor, deviation: Tensor, low: float, high: float) -> Tensor:
    """E[min(max(x, low), high)] for a normal x; low and high may be infinite, and deviations may be 0.

    With a = (low - mean) / deviation, b = (high - mean) / deviation, density phi and distribution Phi, it is
    low Phi(a) + high (1 - Phi(b)) + mean (Phi(b) - Phi(a)) + deviation (phi(a) - phi(b)).
    """
    mean, deviation = mean.double(), deviation.double()
    certain = deviation == 0
    spread = torch.where(certain, 1.0, deviation)
    a, b = (low - mean) / spread, (high - mean) / spread
    below, above = torch.special.ndtr(a), torch.special.ndtr(-b)
    result = mean * (torch.special.ndtr(b) - below) + spread * (_density(a) - _density(b))
    if math.isfinite(low):
        result = result + low * below
    if math.isfinite(high):
        result = result + high * above
    return torch.where(certain, mean.clamp(low, high), result)


def _density(x: Tensor) -> Tensor:
    return torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)
