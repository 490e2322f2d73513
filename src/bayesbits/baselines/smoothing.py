"""Smoothing: the ranges of a linear layer's input channels are made more equal, and its weights take the difference.

    x W = (x / s) (s W),    s_j = max|x_j|^alpha / max|W_j|^(1 - alpha)

Activations of transformers have outliers in single channels, which stretch the one range of a tensor and leave few
codes for all other channels; weights have none. The factor s moves a part of them into the weights, alpha of it. The
method is that of Xiao et al., *SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language
Models*, 2023. Layers that read the same tensor, as query, key and value do, share one factor, with the largest of their
weights in it.

Where the input is the output of a normalization (LayerNorm, RMSNorm) that these layers alone read, 1 / s goes into its
weight and bias, and costs nothing. Elsewhere the layer multiplies its input by 1 / s: where a residual addition reads
the normalization, too, as in BERT, and behind GELU or attention.

Factors are rounded to powers of two. Multiplying by those is exact, so that the float network computes the same bits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from bayesbits.baselines.layerwise import SkippedLayer, check_batches, observing_layers
from bayesbits.compression.attach import check_free
from bayesbits.graph.channel_rules import SAME
from bayesbits.graph.exported_program import Program, export, operation, shape
from bayesbits.graph.layers import FoundLayer, find_layers, layer_input
from bayesbits.utils.batches import call_without_labels, split_inputs
from bayesbits.utils.modes import evaluation_mode

LARGEST_EXPONENT = 20
"""Of the factors: channels that are hardly used do not ask for more."""
SHOWN = 4
"""How many layers a message names."""
NORMALIZATIONS = {"layer_norm": (2, 3), "native_layer_norm": (2, 3), "rms_norm": (2,), "mul": (0, 1)}
"""Where they have weight and bias among their arguments; RMSNorm may be a formula that ends in a product with one."""


class SmoothedLinear(nn.Linear):
    """A linear layer that multiplies its input, channel by channel, by factors that its weight is divided by."""

    input_factors: Tensor

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        return F.linear(input * self.input_factors, self.weight, self.bias)


@dataclass(frozen=True)
class SmoothedInput:
    """An input of layers that was smoothed."""

    layers: tuple[str, ...]
    """The layers that read it."""
    norm: str | None
    """The normalization whose weight and bias were divided; None where the layers multiply their input themselves."""
    spread_before: float
    """The largest magnitude of a channel over the median of all channels."""
    spread_after: float
    """The same ratio after smoothing."""


@dataclass(frozen=True)
class SmoothingReport:
    """What `smooth` changed; `print` shows one line for each input.

    Args:
        inputs: The inputs that were smoothed.
        skipped: The other linear layers, with the reason.

    Example::

        >>> import bayesbits as bb
        >>> from bayesbits.baselines.smoothing import SmoothedInput
        >>> print(bb.baselines.SmoothingReport((SmoothedInput(("query", "key"), "norm", 40.0, 6.0),), ()))
        query, key: largest channel over the median 40 -> 6, in the weight of norm
    """

    inputs: tuple[SmoothedInput, ...]
    """The inputs that were smoothed."""
    skipped: tuple[SkippedLayer, ...]
    """The other linear layers, with the reason."""

    def __str__(self) -> str:
        lines = [
            f"{', '.join(entry.layers)}: largest channel over the median {entry.spread_before:.3g} -> "
            f"{entry.spread_after:.3g}, {'by a product' if entry.norm is None else f'in the weight of {entry.norm}'}"
            for entry in self.inputs
        ]
        lines += [f"{entry.name} is left as it was: {entry.reason}" for entry in self.skipped]
        return "\n".join(lines)


def smooth(
    model: nn.Module,
    batches: Iterable[Any],
    alpha: float = 0.5,
    *,
    multiply: bool = True,
    layers: Sequence[str] = ("*",),
) -> SmoothingReport:
    """Move outliers of single input channels of linear layers into their weights, in place and before attaching.

    The outputs of the network stay equal. Calibrate after this, as ranges are others.

    Args:
        model: The float network.
        batches: Batches of inputs, as for `Compressor.calibrate`, on which the magnitudes of channels are measured.
        alpha: How much of the differences between channels is moved: 0 none of those of activations, 1 all of them.
        multiply: Whether layers whose input comes from something else than a normalization that they alone read
            multiply their input by the factors, in float and in front of its quantizer. They become `SmoothedLinear`.
            False leaves such layers as they are.
        layers: The names of the layers to smooth, or patterns as in `Spec.rules`. A product takes time, so layers whose
            channels are alike already are better left out.

    Returns:
        The report: what was smoothed, and the reason where it was not.

    Raises:
        TypeError: If `model` is no module, or `batches` is one tensor.
        ValueError: If quantizers are attached already, `alpha` is not from 0 to 1, the batches are empty, or one of
            `layers` names no linear layer.

    Example::

        >>> import torch
        >>> import bayesbits as bb
        >>> model = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Linear(4, 2)).eval()
        >>> with torch.no_grad():
        ...     _ = model[0].weight.copy_(torch.tensor([1.0, 1.0, 64.0, 1.0]))
        >>> x = torch.randn(32, 4)
        >>> before = model(x)
        >>> report = bb.baselines.smooth(model, [x])
        >>> [(entry.layers, entry.norm) for entry in report.inputs]
        [(('1',), '0')]
        >>> bool(report.inputs[0].spread_after < report.inputs[0].spread_before), torch.equal(model(x), before)
        (True, True)
    """
    check_free(model)
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is {alpha!r}; it is a number from 0 to 1")
    held = check_batches(batches, "smooth", least=1)
    program = export(model, *split_inputs(held[0]))
    usable, skipped = _usable_layers(program, layers)
    largest = _largest_inputs(model, usable, held)
    report = []
    for group in _sharing_an_input(program, usable):
        norm = _foldable_norm(program, group)
        blocked = None if norm is not None else _why_not_multiplied(program, group) if multiply else "multiply is False"
        if blocked is not None:
            skipped += [SkippedLayer(layer.name, blocked) for layer in group]
            continue
        factors = _factors(group, largest[group[0].name], alpha)
        if bool((factors == 1).all()):
            skipped += [SkippedLayer(layer.name, "its input channels need no factors") for layer in group]
        else:
            report.append(_smooth(program, group, norm, largest[group[0].name], factors))
    return SmoothingReport(tuple(report), tuple(skipped))


def _usable_layers(program: Program, wanted: Sequence[str]) -> tuple[list[FoundLayer], list[SkippedLayer]]:
    """The linear layers whose weight belongs to them alone, and the reason for the others."""
    linear = [layer for layer in find_layers(program) if layer.kind == "linear"]
    for pattern in wanted:
        if pattern != "*" and not any(fnmatchcase(layer.name, pattern) for layer in linear):
            names = ", ".join(layer.name for layer in linear[:SHOWN]) + (", ..." if linear[SHOWN:] else "")
            raise ValueError(f"layers: {pattern!r} is no linear layer of this network; it has {names or 'none'}")
    usable, skipped = [], []
    for layer in linear:
        if not any(fnmatchcase(layer.name, pattern) for pattern in wanted):
            skipped.append(SkippedLayer(layer.name, "it is not one of `layers`"))
        elif layer.product is not None or not isinstance(layer.module, nn.Linear):
            skipped.append(SkippedLayer(layer.name, "it is no nn.Linear with the forward of torch"))
        elif layer.shared_weight:
            skipped.append(SkippedLayer(layer.name, "its weight is tied"))
        else:
            usable.append(layer)
    return usable, skipped


def _largest_inputs(model: nn.Module, layers: Sequence[FoundLayer], batches: Sequence[Any]) -> Mapping[str, Tensor]:
    """The largest magnitude of every input channel of every layer."""
    largest: dict[str, Tensor] = {}

    def observer(name: str) -> Any:
        def observe(x: Tensor, _: Tensor) -> None:
            found = x.detach().flatten(0, -2).abs().amax(0)
            largest[name] = torch.maximum(largest[name], found) if name in largest else found

        return observe

    with evaluation_mode(model), observing_layers(model, {layer.name: observer(layer.name) for layer in layers}):
        for batch in batches:
            call_without_labels(model, batch)
    return largest


def _sharing_an_input(program: Program, layers: Sequence[FoundLayer]) -> list[list[FoundLayer]]:
    """The layers in groups that read the same tensor; a layer that runs several times is a group of its own."""
    groups: dict[Any, list[FoundLayer]] = {}
    for layer in layers:
        key: Any = layer_input(program, layer.calls[0]) if len(layer.calls) == 1 else layer.name
        groups.setdefault(key, []).append(layer)
    return list(groups.values())


def _foldable_norm(program: Program, layers: Sequence[FoundLayer]) -> tuple[fx.Node, list[str]] | None:
    """The normalization that makes an input which these layers alone read, and its parameters; None without one."""
    if len(layers[0].calls) != 1:
        return None
    node, readers = layer_input(program, layers[0].calls[0]), {layer.calls[0] for layer in layers}
    while node not in program.outputs and readers.issuperset(node.users):
        if operation(node) not in SAME or len(node.all_input_nodes) != 1:
            names = _parameters(program, node, layers[0].inputs)
            return None if names is None else (node, names)
        node, readers = node.all_input_nodes[0], {node}  # a copy that nothing else reads
    return None


def _parameters(program: Program, node: fx.Node, channels: int) -> list[str] | None:
    """The weight and bias of a normalization; None where a node is none, or has none of its own for every channel."""
    places = NORMALIZATIONS.get(operation(node), ())
    given = [node.args[place] for place in places if place < len(node.args) and node.args[place] is not None]
    if operation(node) == "mul":
        given = [weight for weight in given if weight in program.parameters]
    elif len(node.args) <= 2 or node.args[2] is None:
        return None  # without a weight, there is nothing that the factor could go into
    names = []
    for weight in given:
        if not isinstance(weight, fx.Node) or weight not in program.parameters:
            return None
        if shape(weight) != (channels,) or len(weight.users) != 1:
            return None
        names.append(program.parameters[weight])
    return names or None


def _why_not_multiplied(program: Program, layers: Sequence[FoundLayer]) -> str | None:
    """Why layers cannot multiply their input themselves; None where they can."""
    for layer in layers:
        owner = program.model.get_submodule(layer.name.rpartition(".")[0])
        if isinstance(owner, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            return f"{type(owner).__name__} reads the weights of its layers itself, and would not multiply"
    return None


def _factors(layers: Sequence[FoundLayer], largest: Tensor, alpha: float) -> Tensor:
    """s for every input channel, rounded to a power of two; 1 for channels without values or weights."""
    of_weights = torch.stack([layer.weight_value().detach().abs().amax(0) for layer in layers]).amax(0)
    used = (largest > 0) & (of_weights > 0)
    exponents = torch.where(used, alpha * largest.log2() - (1 - alpha) * of_weights.log2(), 0.0)
    exponents = torch.where(used, exponents - exponents[used].median(), 0.0) if bool(used.any()) else exponents
    return torch.exp2(exponents.round().clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT))


@torch.no_grad()
def _smooth(
    program: Program,
    layers: Sequence[FoundLayer],
    norm: tuple[fx.Node, list[str]] | None,
    largest: Tensor,
    factors: Tensor,
) -> SmoothedInput:
    """Multiply the weights by the factors, and divide the input by them."""
    for layer in layers:
        layer.weight_value().mul_(factors)
        if norm is None:
            layer.module.__class__ = SmoothedLinear
            layer.module.register_buffer("input_factors", factors.reciprocal())
    for name in norm[1] if norm is not None else ():
        program.model.get_parameter(name).div_(factors)
    return SmoothedInput(
        layers=tuple(layer.name for layer in layers),
        norm=None if norm is None else program.path(norm[0]),
        spread_before=_spread(largest),
        spread_after=_spread(largest / factors),
    )


def _spread(largest: Tensor) -> float:
    """The largest of some magnitudes over their median."""
    return (largest.max() / largest.median().clamp_min(torch.finfo(largest.dtype).tiny)).item()
