"""The mean of what a layer reads, from the statistics of the batch norm before it.

What a batch norm returns has mean beta and deviation |gamma| in every channel. Taken as normal, its mean behind a
clipping function such as ReLU is known, and averages and moves of the data keep that.
"""

import math
from typing import Any

import torch
from torch import Tensor, fx

from bayesbits.baselines.channel_factors import by_channels
from bayesbits.compression.compressor import Compressor
from bayesbits.graph.channel_rules import MOVES, SAME
from bayesbits.graph.channels import Channels
from bayesbits.graph.exported_program import operation
from bayesbits.graph.layer_paths import LayerPath, LayerPaths
from bayesbits.graph.pointwise import apply_functions, is_function
from bayesbits.records.topology import Layer
from bayesbits.utils.torch_private import BatchNorm

# What keeps the mean of every channel, beside moving data.
MEANS = ("mean", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
         "adaptive_avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d")  # fmt: skip


def means_before(compressor: Compressor, between: LayerPaths, channels: Channels, layer: Layer) -> Tensor | str:
    """The mean of every input channel of a layer; or why it is not known."""
    way = between.path_to(layer.name)
    if way is None:
        return "no single layer with a batch norm stands before it"
    norm = norm_of(compressor, compressor.topology.layer(way.producer))
    if norm is None or norm.weight is None or norm.bias is None:
        return f"{way.producer}, which stands before it, has no batch norm with a scale and a shift"
    bounds = _clipping(way)
    if isinstance(bounds, str):
        return bounds
    gate = compressor.attachment.gate_of(way.producer)
    kept = torch.ones_like(norm.weight) if gate is None else gate.values().to(norm.weight)
    mean, deviation = (norm.bias * kept).detach(), (norm.weight * kept).detach().abs()
    by_output = clipped_normal_mean(mean, deviation, *bounds).tolist()
    of_class = dict(zip(channels.outputs[way.producer], by_output, strict=True))
    return torch.tensor([of_class[one] for one in channels.inputs[layer.name]], dtype=torch.float64)


def norm_of(compressor: Compressor, layer: Layer) -> BatchNorm | None:
    """The batch norm that alone reads a layer; None where there is none."""
    norm = None if layer.norm is None else compressor.model.get_submodule(layer.norm)
    assert norm is None or isinstance(norm, BatchNorm)
    return norm


def _clipping(way: LayerPath) -> tuple[float, float] | str:
    """The bounds between which all that lies on a way clips, found by trying; or what else lies there."""
    functions: list[fx.Node] = []
    averaged = False
    for node in way.operations:
        name = operation(node)
        if is_function(node) and not averaged:
            functions.append(node)
        elif name in MEANS:
            averaged = True
        elif name not in (*MOVES, *SAME):
            return f"{name.lstrip('_')} lies before it, behind which means are not known"
    probes = torch.cat([torch.linspace(-40, 40, 321), torch.tensor([-1e6, 1e6])]).double()
    outcome = apply_functions(functions, probes)
    low, high = outcome[-2].item(), outcome[-1].item()
    if not torch.equal(outcome, probes.clamp(low, high)):
        return f"{' and '.join(operation(node) for node in functions)} before it does not clip"
    return (low if low > -1e6 else -torch.inf), (high if high < 1e6 else torch.inf)


def mean_of_layer(between: LayerPaths, layer: Layer, weight: Tensor, inputs: Tensor) -> Tensor:
    """The mean of what a layer with this weight returns, by channel, from the means of its input channels."""
    found = between.layers[layer.name]
    sums = by_channels(found, weight).sum(dim=2)
    grouped = inputs.reshape(layer.groups, 1, -1).expand(-1, found.outputs // layer.groups, -1).reshape(sums.shape)
    mean = (sums * grouped).sum(dim=1)
    if layer.kind == "conv_transpose":  # every output position meets one in so many places of the kernel
        stride: Any = found.module.stride
        mean = mean / torch.tensor(stride).prod().item()
    return mean


def clipped_normal_mean(mean: Tensor, deviation: Tensor, low: float, high: float) -> Tensor:
    """E[min(max(x, low), high)] for x normal; low and high may be infinite, and a deviation may be 0.

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
