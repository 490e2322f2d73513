"""Cross-layer equalization: every channel gets the same range in the weight that makes it and in the one that reads it.

Output channel c of a layer is divided by s_c, and input channel c of the next layer is multiplied by s_c. Where only
positively homogeneous functions lie between the two (f(a x) = a f(x) for a > 0: ReLU, pooling, or none), the network
computes the same. With r1 and r2 the largest magnitudes of channel c in the two weights, s = sqrt(r1 r2) / r2 makes
both of them sqrt(r1 r2), so that one range for a whole tensor fits all channels best. A layer may belong to several
pairs, so all pairs are visited again until no factor changes; a depthwise layer between two others gives all three the
cube root of the product. The method is that of Nagel et al., *Data-Free Quantization through Weight Equalization and
Bias Correction*, 2019, without its absorption of high biases, which changes the function of the network.

ReLU6 passes a factor on only where it does not clip; `cross_layer_equalization_clips` keeps it exact on given data.

Ranges are those of the weights with their batch norm folded, as quantizers see them. The factor goes into the batch
norm's scale and shift where a layer has one, and otherwise into its weight and bias.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.baselines.cross_layer_equalization_clips import clipped_layers, keep_below_clip, least_factors
from bayesbits.baselines.layerwise import norm_of
from bayesbits.baselines.weight_channels import Magnitudes, rescale
from bayesbits.compression.attach import check_free
from bayesbits.graph.channels import Channels
from bayesbits.graph.layer_paths import LayerPaths, read_layer_paths
from bayesbits.records.topology import ChannelGroup

TOLERANCE = 1e-3  # iteration ends when no logarithm of a factor is larger


@dataclass(frozen=True)
class EqualizedPair:
    """Channels whose ranges were made equal in the layer that makes them and in those that read them."""

    producer: str
    """The layer that makes the channels."""
    consumers: tuple[str, ...]
    """The layers that read them."""
    channels: int
    """The number of channels."""
    spread_before: float
    """The largest range of these channels in the producer's weight over the smallest, without channels of zeros."""
    spread_after: float
    """The same ratio after equalization."""


@dataclass(frozen=True)
class SkippedChannels:
    """Channels that were not changed."""

    name: str
    """The name of their group, usually that of the layer that makes them."""
    reason: str
    """Why they were not changed."""


@dataclass(frozen=True)
class EqualizationReport:
    """The changes that `equalize` made to a network; `print` shows one line for each pair.

    Args:
        pairs: The equalized channels, with the spread of their ranges before and after.
        skipped: The other channels, each with the reason.
        sweeps: The number of passes over all pairs.
        replaced: The ReLU6 modules that were replaced by ReLU.

    Example::

        >>> import bayesbits as bb
        >>> from bayesbits.baselines.cross_layer_equalization import EqualizedPair
        >>> pair = EqualizedPair("0", ("2",), channels=8, spread_before=4.0, spread_after=1.5)
        >>> print(bb.baselines.EqualizationReport((pair,), (), sweeps=2, replaced=()))
        0 -> 2: 8 channels, spread of ranges 4 -> 1.5
    """

    pairs: tuple[EqualizedPair, ...]
    """The equalized channels."""
    skipped: tuple[SkippedChannels, ...]
    """The other channels, each with the reason."""
    sweeps: int
    """The number of passes over all pairs."""
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
    model: nn.Module,
    example_inputs: Any,
    *,
    batches: Iterable[Any] | None = None,
    replace_relu6: bool = False,
    sweeps: int = 1000,
) -> EqualizationReport:
    """Equalize the ranges of channels across layers, in place and before attaching; the outputs stay equal.

    Args:
        model: The float network.
        example_inputs: Example inputs, as for `bayesbits.attach`; they are only used to read the network's structure.
        batches: Batches of inputs, as for `Compressor.calibrate`. With them, channels that pass an `nn.ReLU6` directly
            after their layer are equalized too, by factors with which no activation on these batches is clipped that
            was not, and with a margin of a quarter. ReLU6 stays, and outputs stay equal within the margin.
        replace_relu6: Whether every `nn.ReLU6` is replaced by `nn.ReLU` first, which changes the network's function.
            Without this and without batches, channels that pass a ReLU6 are skipped, as it is not homogeneous.
        sweeps: The largest number of passes over all pairs.

    Returns:
        The equalized channels, and those that were skipped.

    Raises:
        ValueError: If quantizers are attached to the model, `sweeps` is below 1, both `batches` and `replace_relu6` are
            given, or torch.export cannot read the model.

    Example::

        >>> import torch
        >>> import bayesbits as bb
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
        >>> _ = model[0].weight.data.copy_(torch.tensor([[4.0, -2.0], [0.5, -1.0]]))
        >>> _ = model[2].weight.data.copy_(torch.tensor([[-1.0, 9.0]]))
        >>> report = bb.baselines.equalize(model, torch.ones(1, 2))
        >>> print(report.pairs[0].spread_before, report.pairs[0].spread_after)
        4.0 1.5
    """
    check_free(model)
    if sweeps < 1:
        raise ValueError(f"equalization goes over the pairs at least once, got sweeps={sweeps}")
    if batches is not None and replace_relu6:
        raise ValueError("batches keep every ReLU6 exact, and replace_relu6=True replaces them: give one of the two")
    replaced = _replace_relu6(model) if replace_relu6 else ()
    paths = _read(model, example_inputs, replaced)
    clipped = clipped_layers(paths) if batches is not None else {}
    factors = least_factors(model, paths, clipped, batches or ())
    passed = tuple(dict.fromkeys(clipped.values()))
    if clipped:  # for reading only: channels that pass these modules have factors that do not meet the clip
        _exchange(model, passed, nn.ReLU)
        try:
            paths = _read(model, example_inputs, ())
        finally:
            _exchange(model, passed, nn.ReLU6)
    channels = paths.scalable_channels()
    groups, skipped = _choose(paths, channels)
    weights = {name: Magnitudes(layer, paths, channels) for name, layer in paths.layers.items()}
    scale = torch.ones(sum(group.size for group in channels.groups), dtype=torch.float64)
    before = [_spread(weights, group, scale) for group in groups]
    least = {
        group.first: factors[group.producers[0]][_inside(group, channels)]
        for group in groups
        if group.producers[0] in factors
    }
    done = _iterate(weights, groups, scale, sweeps, least)
    pairs = tuple(
        EqualizedPair(group.producers[0], group.consumers, group.size, spread, _spread(weights, group, scale))
        for group, spread in zip(groups, before, strict=True)
    )
    for name, layer in paths.layers.items():
        of_inputs, of_outputs = (scale[list(one[name])] for one in (channels.inputs, channels.outputs))
        rescale(layer, norm_of(paths.model, layer), of_inputs, of_outputs)
    return EqualizationReport(pairs, skipped, done, replaced)


def _read(model: nn.Module, example_inputs: Any, replaced: Sequence[str]) -> LayerPaths:
    """The paths between the layers; where they cannot be read, replaced modules are put back."""
    try:
        return read_layer_paths(model, example_inputs)
    except Exception as error:
        _exchange(model, replaced, nn.ReLU6)
        raise ValueError(
            "equalization needs the operations between the layers, and torch.export could not read this network: "
            f"{str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}"
        ) from error


def _inside(group: ChannelGroup, channels: Channels) -> Tensor:
    """The indices of the output channels of a group's producer that are the group's, in the order of the group."""
    order = torch.tensor(channels.outputs[group.producers[0]])
    return torch.tensor([int((order == channel).nonzero()[0]) for channel in group.channels])


def _choose(paths: LayerPaths, channels: Channels) -> tuple[list[ChannelGroup], tuple[SkippedChannels, ...]]:
    """The groups of channels to equalize, and the others with the reason."""
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
            norm = norm_of(paths.model, paths.layers[group.producers[0]])
            if norm is not None and (norm.weight is None or norm.bias is None):
                reason = "the batch norm after it has no scale and shift that could take a factor"
            computed = [name for name in (*group.producers, *group.consumers) if not paths.layers[name].is_stored]
            if computed:
                reason = f"the weight or bias of {computed[0]} is computed from parameters, and cannot be written"
        if reason is None:
            chosen.append(group)
        else:
            skipped.append(SkippedChannels(group.name, reason))
    return chosen, tuple(skipped)


def _iterate(
    weights: dict[str, Magnitudes],
    groups: Sequence[ChannelGroup],
    scale: Tensor,
    sweeps: int,
    least: Mapping[int, Tensor],
) -> int:
    """Change `scale` until the ranges of every pair are equal; returns the number of passes over all pairs.

    `least` has the bounds of factors before a clip, by the first channel of their group.
    """
    for sweep in range(1, sweeps + 1):
        moved = 0.0
        for group in groups:
            first = weights[group.producers[0]].of_outputs(group, scale)
            second = torch.stack([weights[name].of_inputs(group, scale) for name in group.consumers]).amax(dim=0)
            factor = equalizing_factor(first, second)
            here = scale[group.first : group.first + group.size]
            before = here.clone()
            here *= factor
            keep_below_clip(scale, least, group.first)
            moved = max(moved, (here / before).log().abs().max().item())
        if moved < TOLERANCE:
            return sweep
    return sweeps


def equalizing_factor(first: Tensor, second: Tensor) -> Tensor:
    """s = sqrt(r1 r2) / r2: output channels are divided by it, and input channels are multiplied by it.

    It is 1 where one of the ranges is zero.
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
