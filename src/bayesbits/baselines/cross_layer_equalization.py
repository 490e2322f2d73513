"""Cross-layer equalization: channels get ranges of equal size in both of the layers that they lie between.

What a layer's output channel c is divided by, s_c, the next layer's input channel c is multiplied with; where only
positively homogeneous functions lie between (f(a x) = a f(x) for a > 0: ReLU, pooling, none at all), the network
computes the same. With r1 and r2 the largest magnitudes of channel c in the two weights, s = sqrt(r1 r2) / r2 makes
both of them sqrt(r1 r2), so that one range for a whole tensor wastes the least. Layers that stand in several pairs are
gone over again until nothing moves; of a depthwise layer between two others this gives all three the cube root of the
product. The method is that of Nagel et al., *Data-Free Quantization through Weight Equalization and Bias Correction*,
2019, without its absorption of high biases, after which the network would not compute the same.

Ranges are those of the weights with their batch norm folded in, as quantizers see them. The factor itself goes into
the batch norm's scale and shift where a layer has one, and into its weight and bias where not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.baselines.channel_factors import Magnitudes, norm_of, rescale
from bayesbits.compression.attach import check_free
from bayesbits.graph.channels import Channels
from bayesbits.graph.layer_paths import LayerPaths, read_layer_paths
from bayesbits.records.topology import ChannelGroup

TOLERANCE = 1e-3  # of the logarithm of a factor: below it nothing moves any more


@dataclass(frozen=True)
class EqualizedPair:
    """Channels whose ranges were made equal in the layer that makes them and in those that read them."""

    producer: str
    """The layer that makes them."""
    consumers: tuple[str, ...]
    """The layers that read them."""
    channels: int
    """How many there are."""
    spread_before: float
    """The largest range of these channels in the producer's weight over the smallest; channels of zeros aside."""
    spread_after: float
    """The same afterwards."""


@dataclass(frozen=True)
class SkippedChannels:
    """Channels that were left as they were."""

    name: str
    """Their group: the layer that makes them, as a rule."""
    reason: str
    """Why."""


@dataclass(frozen=True)
class Equalizationreport:
    """What equalization did to a network."""

    pairs: tuple[EqualizedPair, ...]
    """What was equalized."""
    skipped: tuple[SkippedChannels, ...]
    """What was not, and why."""
    sweeps: int
    """How often all pairs were gone over."""
    replaced: tuple[str, ...]
    """The ReLU6 modules that were replaced by ReLU."""

    def __str__(self) -> str:
        lines = [
            f"{pair.producer} -> {', '.join(pair.consumers)}: {pair.channels} channels, "
            f"spread of ranges {pair.spread_before:.4g} -> {pair.spread_after:.4g}"
            for pair in self.pairs
        ]
        lines += [f"{name}: a ReLU in place of ReLU6" for name in self.replaced]
        lines += [f"{entry.name} is left as it was: {entry.reason}" for entry in self.skipped]
        return "\n".join(lines)


def equalize(
    model: nn.Module, example_inputs: Any, *, replace_relu6: bool = False, sweeps: int = 1000
) -> Equalizationreport:
    """Equalize the ranges of channels across layers, in place and before attaching; the outputs stay what they were.

    `example_inputs` are as for `attach`. ReLU6 lets no factor pass, so that channels behind it are left alone; with
    `replace_relu6` every such module is replaced by a ReLU first, which does change what the network computes. At most
    `sweeps` times all pairs are gone over.
    """
    check_free(model)
    if sweeps < 1:
        raise ValueError(f"equalization goes over the pairs at least once, got sweeps={sweeps}")
    replaced = _replace_relu6(model) if replace_relu6 else ()
    try:
        between = read_layer_paths(model, example_inputs)
    except Exception as error:
        _exchange(model, replaced, nn.ReLU6)
        raise ValueError(
            "equalization has to see what lies between the layers, and torch.export could not read this network: "
            f"{str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}"
        ) from error
    channels = between.scalable_channels()
    groups, skipped = _choose(between, channels)
    weights = {name: Magnitudes(layer, between, channels) for name, layer in between.layers.items()}
    scale = torch.ones(sum(group.size for group in channels.groups), dtype=torch.float64)
    before = [_spread(weights, group, scale) for group in groups]
    done = _iterate(weights, groups, scale, sweeps)
    pairs = tuple(
        EqualizedPair(group.producers[0], group.consumers, group.size, spread, _spread(weights, group, scale))
        for group, spread in zip(groups, before, strict=True)
    )
    for name, layer in between.layers.items():
        rescale(layer, norm_of(between, layer), scale[list(channels.inputs[name])], scale[list(channels.outputs[name])])
    return Equalizationreport(pairs, skipped, done, replaced)


def _choose(between: LayerPaths, channels: Channels) -> tuple[list[ChannelGroup], tuple[SkippedChannels, ...]]:
    """The groups of channels to equalize, and the others with the reason why not."""
    chosen, skipped = [], []
    for group in channels.groups:
        if not group.producers:
            continue  # the network's inputs
        reason = group.reason
        if reason is None and len(group.producers) > 1:
            reason = f"several layers make these channels together ({', '.join(group.producers)})"
        elif reason is None and not group.consumers:
            reason = "no layer reads these channels"
        elif reason is None:
            norm = norm_of(between, between.layers[group.producers[0]])
            if norm is not None and (norm.weight is None or norm.bias is None):
                reason = "the batch norm behind it has no scale and shift that could take a factor"
        if reason is None:
            chosen.append(group)
        else:
            skipped.append(SkippedChannels(group.name, reason))
    return chosen, tuple(skipped)


def _iterate(weights: dict[str, Magnitudes], groups: Sequence[ChannelGroup], scale: Tensor, sweeps: int) -> int:
    """Bring `scale` to where every pair is equal; returns how often all pairs were gone over."""
    for sweep in range(1, sweeps + 1):
        moved = 0.0
        for group in groups:
            first = weights[group.producers[0]].of_outputs(group, scale)
            second = torch.stack([weights[name].of_inputs(group, scale) for name in group.consumers]).amax(dim=0)
            factor = equalising_factor(first, second)
            scale[group.first : group.first + group.size] *= factor
            moved = max(moved, factor.log().abs().max().item())
        if moved < TOLERANCE:
            return sweep
    return sweeps


def equalising_factor(first: Tensor, second: Tensor) -> Tensor:
    """s = sqrt(r1 r2) / r2: what output channels are divided by and input channels multiplied with.

    1 where one of the ranges is zero: such a channel carries nothing.
    """
    alive = (first > 0) & (second > 0)
    return torch.where(alive, torch.sqrt(first * second) / torch.where(alive, second, 1.0), 1.0)


def _spread(weights: dict[str, Magnitudes], group: ChannelGroup, scale: Tensor) -> float:
    ranges = weights[group.producers[0]].of_outputs(group, scale)
    ranges = ranges[ranges > 0]
    return (ranges.max() / ranges.min()).item() if ranges.numel() else math.nan


def _replace_relu6(model: nn.Module) -> tuple[str, ...]:
    modules = model.named_modules(remove_duplicate=False)
    names = tuple(name for name, module in modules if type(module) is nn.ReLU6 and name)
    _exchange(model, names, nn.ReLU)
    return names


def _exchange(model: nn.Module, names: Sequence[str], kind: type[nn.ReLU] | type[nn.ReLU6]) -> None:
    for name in names:
        old = model.get_submodule(name)
        model.set_submodule(name, kind(inplace=bool(old.inplace)).train(old.training))
