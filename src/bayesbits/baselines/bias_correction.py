"""Bias correction: rounding shifts the mean of a layer's output, and the layer's bias compensates for it.

The mean of a layer's output over data, by channel, is E[W x] in the float network and E[W_q x_q] in the quantized one;
the difference is subtracted from the bias. With data both means are measured, layer after layer, so that each layer
reads the outputs of layers that are corrected already (Nagel et al., *Data-Free Quantization through Weight
Equalization and Bias Correction*, 2019). Without data E[x] is computed where a batch norm and a clipping function come
before the layer: the mean of x ~ clip(N(beta, gamma^2)) is known, and rounding the weights shifts the output by
(W_q - W) E[x].

Only biases change; where a layer has none, the shift of its batch norm changes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.baselines.bias_correction_input_means import mean_of_layer, means_before
from bayesbits.baselines.bias_correction_layer import LayerBias, Mean
from bayesbits.baselines.changed_parameters import CORRECTED, check_unchanged, remember
from bayesbits.baselines.layerwise import (
    Progress,
    SkippedLayer,
    attached_layer,
    check_batches,
    check_fixed,
    detached_copy,
    float_copy,
    norm_of,
    observing_layers,
    run_to,
)
from bayesbits.baselines.simultaneous_passes import PassesError, advance_together
from bayesbits.compression.compressor import Compressor
from bayesbits.functional.compiled import never_compiled
from bayesbits.graph.layer_paths import read_layer_paths
from bayesbits.nn.layer import AttachedLayer
from bayesbits.records.plan import Plan
from bayesbits.utils.batches import call_without_labels
from bayesbits.utils.modes import evaluation_mode
from bayesbits.utils.torch_private import BatchNorm

_MOST_VALUES = 2**28  # of a module's output on all batches, which are in memory a few times: 4 GiB


@dataclass(frozen=True)
class CorrectedLayer:
    """A layer whose bias was corrected."""

    name: str
    """The layer."""
    parameter: str
    """The parameter that was changed: the layer's bias, or the shift of its batch norm."""
    shift: float
    """The root mean square, over channels, of the shift that was subtracted."""


@dataclass(frozen=True)
class BiasCorrectionReport:
    """The changes that bias correction made to a network; `print` shows one line for each layer.

    Args:
        plan: The plan of the network, which did not change.
        layers: The corrected layers in running order, each with its parameter and the size of its shift.
        skipped: The other layers, each with the reason.

    Example::

        >>> import bayesbits as bb
        >>> from bayesbits.baselines.bias_correction import CorrectedLayer
        >>> layer = CorrectedLayer("0", parameter="0.bias", shift=0.125)
        >>> print(bb.baselines.BiasCorrectionReport(bb.Plan({"0.weight": 4}), (layer,), ()))
        0: a shift of 0.125 was subtracted from 0.bias
    """

    plan: Plan
    """The plan of the network, which did not change."""
    layers: tuple[CorrectedLayer, ...]
    """The corrected layers in running order."""
    skipped: tuple[SkippedLayer, ...]
    """The other layers, each with the reason."""

    def __str__(self) -> str:
        lines = [
            f"{layer.name}: a shift of {layer.shift:.4g} was subtracted from {layer.parameter}" for layer in self.layers
        ]
        return "\n".join(lines + [f"{entry.name} is left as it was: {entry.reason}" for entry in self.skipped])


def correct_biases(
    compressor: Compressor,
    batches: Iterable[Any],
    *,
    reference: nn.Module | None = None,
    progress: Progress | None = None,
) -> BiasCorrectionReport:
    """Correct the biases of a network with a fixed plan, by the shift of the mean of every layer's output on data.

    Only biases change. Where the call fails, all biases are restored.

    Args:
        compressor: The compressor of a network in evaluation mode, after `Compressor.fix`.
        batches: Batches of inputs, as for `Compressor.calibrate`. All of them are held in memory, and where that is
            possible the outputs of one layer on all of them too: then all layers are corrected in one pass. Otherwise
            the batches run through the network up to each layer once.
        reference: The float network whose means are wanted. By default it is this network without its quantizers. Where
            weights or biases have changed since, by `adaround`, `reconstruct`, `gptq` or a correction, a copy made
            before is needed: `reference = copy.deepcopy(model)` before `attach`.
        progress: A function that is called with a layer's name, its number and the number of layers.

    Returns:
        The shift of every corrected layer, and the layers that were skipped.

    Raises:
        ValueError: If the plan is not fixed, the network is in training mode, the examples are too few or all equal, or
            weights were rounded or biases corrected before and no `reference` is given.

    Example::

        >>> import torch
        >>> import bayesbits as bb
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
        >>> x = torch.randn(32, 4)
        >>> compressor = bb.attach(model, x)
        >>> compressor.fix(bb.baselines.uniform(compressor, [x], weights=3))
        >>> report = bb.baselines.correct_biases(compressor, [x])
        >>> [layer.parameter for layer in report.layers]
        ['0.bias', '2.bias']
    """
    check_fixed(compressor, "bias correction")
    if reference is None:
        check_unchanged(compressor, "pass reference=, a copy of the network made before")
        reference = float_copy(compressor)
    held = check_batches(batches, "bias correction")
    biases, reasons = _biases(compressor)
    wanted = _float_means(reference, biases.values(), held)
    with _remembered(compressor, list(biases.values())):
        corrected = _correct_in_one_pass(compressor, biases, wanted, held, progress)
        if corrected is None:
            corrected = _correct_layer_by_layer(compressor, biases, wanted, held, progress)
    return _report(compressor, corrected, reasons)


def correct_biases_without_data(compressor: Compressor, example_inputs: Any) -> BiasCorrectionReport:
    """Correct the biases of a network with a fixed plan from the statistics of its batch norms alone.

    It applies to layers that read a batch norm, followed by ReLU, ReLU6 or no function; the others are skipped with the
    reason. The zeros of padding are not accounted for. It can be done only once, as a second call would subtract the
    same shifts again.

    Args:
        compressor: The compressor of a network in evaluation mode, after `Compressor.fix`.
        example_inputs: Example inputs, as for `bayesbits.attach`; they are only used to read the network's structure.

    Returns:
        The shift of every corrected layer, and the layers that were skipped.

    Raises:
        ValueError: If the plan is not fixed, the network is in training mode, weights were rounded or biases corrected
            before, or torch.export cannot read the network.

    Example::

        >>> import torch
        >>> import bayesbits as bb
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).eval()
        >>> x = torch.randn(32, 4)
        >>> compressor = bb.attach(model, x)
        >>> compressor.fix(bb.baselines.uniform(compressor, [x], weights=3))
        >>> report = bb.baselines.correct_biases_without_data(compressor, x)
        >>> [layer.parameter for layer in report.layers], [layer.name for layer in report.skipped]
        (['3.bias'], ['0'])
    """
    check_fixed(compressor, "bias correction")
    check_unchanged(compressor, "use correct_biases with data and reference=, a copy of the network made before")
    copied = detached_copy(compressor)
    try:
        paths = read_layer_paths(copied, example_inputs)
    except Exception as error:
        raise ValueError(
            "bias correction without data needs the operations before each layer, and torch.export could not read "
            "this network: use correct_biases with data"
        ) from error
    channels = paths.scalable_channels()
    biases, reasons = _biases(compressor)
    shifts: dict[str, Tensor] = {}  # computed before any bias changes: the means are those of the float network
    for layer in compressor.topology.layers:
        if layer.name not in biases:
            continue
        inputs = means_before(compressor, paths, channels, layer)
        if isinstance(inputs, str):
            reasons[layer.name] = inputs
            continue
        module = biases[layer.name].module
        added = (module.effective_weight() - module.weight).detach().double()
        shifts[layer.name] = mean_of_layer(paths, layer, added, inputs.to(added.device))
    corrected = []
    with _remembered(compressor, [biases[name] for name in shifts]):
        for name, shift in shifts.items():
            bias = biases[name]
            corrected.append(CorrectedLayer(name, bias.name, bias.subtract(bias.after_norm(shift))))
    return _report(compressor, corrected, reasons)


def _correct_layer_by_layer(
    compressor: Compressor,
    biases: Mapping[str, LayerBias],
    wanted: Mapping[str, Mean],
    batches: list[Any],
    progress: Progress | None,
) -> list[CorrectedLayer]:
    """Correct every layer after running the network up to it on all batches; works for every network."""
    corrected = []
    layers = compressor.topology.layers
    for number, layer in enumerate(layers, start=1):
        bias = biases.get(layer.name)
        if bias is not None:
            mean = bias.mean()
            for batch in batches:
                run_to(compressor.model, layer, batch, mean.add, module=bias.module_name)
            corrected.append(_correct(bias, mean, wanted[layer.name]))
        if progress is not None:
            progress(layer.name, number, len(layers))
    return corrected


def _correct_in_one_pass(
    compressor: Compressor,
    biases: Mapping[str, LayerBias],
    wanted: Mapping[str, Mean],
    batches: list[Any],
    progress: Progress | None,
) -> list[CorrectedLayer] | None:
    """The same in one pass over all batches, side by side; None where that needs much memory or does not work.

    It does not work where a layer is called several times, where the batches take different ways, and where the
    network's code carries values from one module to another beside its tensors, so that passes disturb each other. So
    the means are measured once more afterwards, batch by batch: they have to be equal to those of the passes.
    """
    layers = {layer.name: layer for layer in compressor.topology.layers}
    most = max((mean.values for mean in wanted.values()), default=0)
    if most > _MOST_VALUES or any(layers[name].calls != 1 for name in biases):
        return None
    owners = {bias.module_name: bias for bias in biases.values()}
    if not owners.keys() <= dict(compressor.model.named_modules()).keys():
        return None  # the bias of a product that a module's own code computes
    before, after = ({name: bias.mean() for name, bias in owners.items()} for _ in range(2))
    values = [(bias.parameter, bias.parameter.detach().clone()) for bias in biases.values()]

    def see_at(name: str) -> Callable[[Tensor, bool], None]:
        return lambda output, again: (after if again else before)[name].add(output, output)

    corrected: dict[str, CorrectedLayer] = {}
    numbers = {name: number for number, name in enumerate(layers, start=1)}
    try:
        with never_compiled():
            for name in advance_together(compressor.model, batches, {name: see_at(name) for name in owners}):
                layer = owners[name].layer.name
                corrected[layer] = _correct(owners[name], before[name], wanted[layer])
                if progress is not None:
                    progress(layer, numbers[layer], len(layers))
            equal = corrected.keys() == biases.keys() and _have_means(compressor.model, after, batches)
    except PassesError:
        equal = False
    if equal:
        return [corrected[name] for name in layers if name in corrected]
    with torch.no_grad():
        for parameter, value in values:
            parameter.copy_(value)
    return None


def _correct(bias: LayerBias, found: Mean, wanted: Mean) -> CorrectedLayer:
    """Subtract the difference of two means from a bias."""
    shift = found.value() - wanted.value()
    bias.round_parameter()
    return CorrectedLayer(bias.layer.name, bias.name, bias.subtract(shift))


def _have_means(model: nn.Module, expected: Mapping[str, Mean], batches: list[Any]) -> bool:
    """Whether the outputs of modules have these means, batch after batch."""
    found = {name: mean.bias.mean() for name, mean in expected.items()}
    with observing_layers(model, {name: mean.add for name, mean in found.items()}):
        for batch in batches:
            call_without_labels(model, batch)
    return all(torch.equal(mean.value(), expected[name].value()) for name, mean in found.items())


def _biases(compressor: Compressor) -> tuple[dict[str, LayerBias], dict[str, str]]:
    """The biases to correct, and the reasons why other layers are skipped; both by the layers' names."""
    biases: dict[str, LayerBias] = {}
    reasons: dict[str, str] = {}
    bits = compressor.plan().bits
    for layer in compressor.topology.layers:
        module = attached_layer(compressor, layer.name)
        reason = _obstacle(module, bits.get(layer.parameter), norm_of(compressor.model, layer))
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


def _obstacle(module: AttachedLayer | None, bits: int | None, norm: BatchNorm | None) -> str | None:
    """Why the bias of a layer, whose weight has so many bits, cannot be corrected; None where it can."""
    if module is None:
        return "it was left in float when attaching"
    if bits == 0:
        return "its weight has 0 bits: it returns nothing"
    if module.bias is None and (norm is None or norm.bias is None):
        return "neither it nor a batch norm of its own has a bias"
    if module.bias is not None and module.stored_bias is None:
        return "its bias is computed from parameters, and cannot be written"
    return None


def _float_means(reference: nn.Module, biases: Iterable[LayerBias], batches: list[Any]) -> dict[str, Mean]:
    """The means of the float network at the places of all biases, by layer, in one pass over the batches."""
    means = {bias.layer.name: bias.mean() for bias in biases}
    observers = {mean.bias.module_name: mean.add for mean in means.values()}
    with evaluation_mode(reference), observing_layers(reference, observers):
        for batch in batches:
            call_without_labels(reference, batch)
    return means


@contextmanager
def _remembered(compressor: Compressor, biases: list[LayerBias]) -> Iterator[None]:
    """After the block the biases are remembered as corrected; where it fails, they are restored."""
    before = [bias.parameter.detach().clone() for bias in biases]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for bias, value in zip(biases, before, strict=True):
                bias.parameter.copy_(value)
        raise
    remember(compressor, [bias.parameter for bias in biases], CORRECTED)
