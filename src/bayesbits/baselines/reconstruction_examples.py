"""The examples of a unit, gathered from passes through the float and the quantized network."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.baselines.layerwise import run_to
from bayesbits.baselines.reconstruction_rows import MOST_ROWS, RowSampler
from bayesbits.baselines.reconstruction_units import BlockUnit, Examples, LayerUnit
from bayesbits.baselines.waiting_passes import WaitingPasses
from bayesbits.nn.weight_product import find_layer
from bayesbits.records.topology import Layer
from bayesbits.utils.torch_private import tree_map


@dataclass(frozen=True)
class Networks:
    """The two networks, and the passes of all batches through them."""

    quantized: nn.Module
    reference: nn.Module
    batches: list[Any]
    passes: WaitingPasses
    reference_passes: WaitingPasses


@dataclass(frozen=True)
class Gathering:
    """What is gathered for a unit."""

    limit: float
    """The most bytes that are held."""
    asymmetric: bool
    """Whether inputs are those of the quantized network, or of the float one."""
    float_inputs: bool
    """Whether those of the float network are held beside them."""
    quantize: bool
    """Whether the layer's own quantizer has been applied to its inputs."""
    seed: int
    """The seed of the choice of positions."""


Call = tuple[Any, Any, Any]
"""What a unit reads in the quantized and in the float network, and the float output."""


def gather_layer(unit: LayerUnit, networks: Networks, gathering: Gathering) -> list[Examples]:
    """Inputs and targets of a layer over all batches and calls: as rows, or where that is not possible, by shape."""
    original: Any = find_layer(networks.reference, unit.name)
    calls = _repeated_calls(unit, networks) if unit.layer.calls > 1 else _calls(unit.name, networks)
    sampler: RowSampler | None = None
    count = 0
    kept: dict[Any, list[list[Tensor]]] = {}
    generator = torch.Generator().manual_seed(gathering.seed)
    for given, free, output in calls:
        x, free, output = (_with_examples(_first(one), unit.layer) for one in (given, free, output))
        alike = x.shape == free.shape  # a float network without quantizers may pad after the point where it is observed
        free = free if alike else x
        x = x if gathering.asymmetric else free
        wanted = [x, *([free] if gathering.float_inputs else [])]
        if not count:
            if alike:
                weight, bias = original.weight, original.bias
                sampler = RowSampler.of(unit.module, unit.layer, weight, bias, free, output)
            examples = len(networks.batches) * unit.layer.calls * len(x)
            count = _share(sampler, unit, [*wanted, output], examples, gathering.limit)
        if sampler is None:
            tensors = [*(one[::count] for one in wanted), unit.finish(output[::count])]
        else:
            positions = sampler.positions(x, output, count, generator)
            tensors = [sampler.inputs(one, positions) for one in wanted]
            tensors.append(unit.finish(sampler.outputs(output, positions), as_rows=True))
        if gathering.quantize and unit.module.parts.input is not None:
            tensors[0] = unit.module.parts.input(tensors[0])
        kept.setdefault(tuple(one.shape[1:] for one in tensors), []).append(tensors)
    return _joined(unit.name, kept.values(), as_rows=sampler is not None, quantized=gathering.quantize)


def _share(sampler: RowSampler | None, unit: LayerUnit, tensors: list[Tensor], examples: int, limit: float) -> int:
    """The number of positions of every example, or without rows, n where every n-th example is taken."""
    if sampler is None:
        in_all = examples * sum(one[0].numel() * one.element_size() for one in tensors)
        return max(1, math.ceil(in_all / limit))
    filters = unit.layer.weight_shape
    row = 4 * (len(tensors) - 1) * math.prod(filters[1:]) * unit.layer.groups + 4 * filters[0]
    return max(1, math.ceil(min(MOST_ROWS, limit / row) / examples))


def gather_block(unit: BlockUnit, networks: Networks, gathering: Gathering) -> list[Examples]:
    """Inputs and targets of a block over all batches, by shape, of at most `limit` bytes."""
    kept: dict[Any, list[list[Tensor]]] = {}
    spacing = 0
    for given, free, output in _calls(unit.name, networks, copy=True):
        inputs, theirs = (unit.take_inputs(one, len(output)) for one in (given, free))
        inputs = inputs if gathering.asymmetric else theirs
        tensors = [*inputs, *(theirs if gathering.float_inputs else []), output]
        if not spacing:
            in_all = len(networks.batches) * sum(one.numel() * one.element_size() for one in tensors)
            spacing = max(1, math.ceil(in_all / gathering.limit))
        tensors = [one[::spacing] for one in tensors]
        kept.setdefault(tuple(one.shape[1:] for one in tensors), []).append(tensors)
    return _joined(unit.name, kept.values(), float_inputs=gathering.float_inputs)


def _joined(
    name: str, kept: Iterable[list[list[Tensor]]], *, float_inputs: bool | None = None, as_rows: bool = False,
    quantized: bool = False,
) -> list[Examples]:  # fmt: skip
    """The examples of all batches as one for each shape; raises where there are none, or where some are infinite."""
    data = []
    for calls in kept:
        *inputs, targets = (torch.cat(parts) for parts in zip(*calls, strict=True))
        half = len(inputs) // 2 if (len(inputs) > 1 if float_inputs is None else float_inputs) else len(inputs)
        if targets.numel():
            data.append(Examples(inputs[:half], inputs[half:], targets, as_rows, quantized))
    if not data:
        raise ValueError(f"no values reached {name} on these batches")
    finite = [torch.isfinite(one).all() for part in data for one in (*part.inputs, *part.float_inputs, part.targets)]
    if not bool(torch.stack(finite).all()):
        raise ValueError(f"the inputs or the wanted outputs of {name} on these batches are not finite")
    return data


def _calls(name: str, networks: Networks, *, copy: bool = False) -> Iterator[Call]:
    """The call of a module on every batch that reaches it. `copy`: the module may write into its inputs."""
    free = networks.reference_passes.to(name)
    free = [_copied(one) for one in free] if copy else free
    outputs = networks.reference_passes.to(name, leave=True)
    given = networks.passes.to(name)
    for calls in zip(given, free, outputs, strict=True):
        if all(one is not None for one in calls):
            yield calls


def _repeated_calls(unit: LayerUnit, networks: Networks) -> Iterator[Call]:
    """All calls of a layer that runs several times, on every batch; both networks are run from the start."""
    for batch in networks.batches:
        wanted = _observed(networks.reference, unit.layer, batch)
        given = _observed(networks.quantized, unit.layer, batch)
        for (x, _), (free, output) in zip(given, wanted, strict=True):
            yield x, free, output


def _observed(model: nn.Module, layer: Layer, batch: Any) -> list[tuple[Tensor, Tensor]]:
    """The input and output of each call of a layer on one batch, copied, as networks may write into them later."""
    calls: list[tuple[Tensor, Tensor]] = []
    run_to(model, layer, batch, lambda x, output: calls.append((x.clone(), output.clone())))
    return calls


def _first(value: Any) -> Tensor:
    """The tensor that a layer reads: its first argument, or the keyword `input`."""
    if isinstance(value, Tensor):
        return value
    arguments, keywords = value
    tensor: Tensor = arguments[0] if arguments else keywords["input"]
    return tensor


def _copied(value: Any) -> Any:
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, value)


def _with_examples(x: Tensor, layer: Layer) -> Tensor:
    """x with a first axis that counts examples; a layer may be called without one."""
    axes = 1 if layer.kind == "linear" else len(layer.weight_shape) - 1
    return x.unsqueeze(0) if x.dim() == axes else x
