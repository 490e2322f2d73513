"""Writing the `IntegerNetwork` of a rewritten graph."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesbits.cost.macs import layer_macs
from bayesbits.deploy.decision import Decision, Weights
from bayesbits.deploy.rewrite.fold_batch_norm import LayerNode
from bayesbits.deploy.rewrite.fuse_quantizers import Emission
from bayesbits.deploy.rewrite.program import FloatProgram
from bayesbits.deploy.signature import name_tensors
from bayesbits.functional.grid import INTEGER_BITS, bias_codes
from bayesbits.graph.exported_program import shape
from bayesbits.records.integer_network import Grid, IntegerLayer, IntegerNetwork, Structure
from bayesbits.records.topology import Layer

LARGEST_BIAS = 2**31 - 1


def cut(layer: Layer, decision: Decision) -> Weights:
    """The weight and bias of a layer without the channels that are removed."""
    weights, removed = decision.weights[layer.name], decision.removed
    makes = _positions(layer.out_channels, removed)
    steps = weights.steps
    return Weights(
        bits=weights.bits,
        weight=cut_weight(layer, weights.weight, removed),
        codes=None if weights.codes is None else cut_weight(layer, weights.codes, removed),
        steps=steps if steps is None or steps.numel() == 1 else steps[makes],
        bias=None if weights.bias is None else weights.bias[makes],
    )


def cut_weight(layer: Layer, weight: Tensor, removed: frozenset[int]) -> Tensor:
    """A weight without the channels that are removed."""
    reads, makes = (_positions(channels, removed) for channels in (layer.in_channels, layer.out_channels))
    if layer.groups > 1:  # one filter a channel, or groups of which all channels stay
        return weight[makes] if layer.depthwise else weight
    rows, columns = (reads, makes) if layer.kind == "conv_transpose" else (makes, reads)
    return weight[rows][:, columns]


def _positions(channels: tuple[int, ...], removed: frozenset[int]) -> Tensor:
    return torch.tensor([index for index, channel in enumerate(channels) if channel not in removed])


def obstacle(layer: Layer, weights: Weights, grids: Mapping[str, Grid]) -> str | None:
    """Why a layer cannot compute with integers; None where it can."""
    grid = grids.get(layer.activation)
    if weights.codes is None or weights.bits > INTEGER_BITS:
        return f"its weight has {weights.bits} bits"
    if grid is None or grid.bits > INTEGER_BITS:
        return f"its input has {32 if grid is None else grid.bits} bits"
    if weights.bias is not None and bool((_bias_codes(weights, grid).abs() > LARGEST_BIAS).any()):
        return "its bias does not fit into 32 bits at the step of its input and weight"
    return None


def record(
    program: FloatProgram,
    layers: list[LayerNode],
    decision: Decision,
    weights: Mapping[str, Weights],
    obstacles: Mapping[str, str | None],
    emissions: Mapping[str, Emission],
) -> IntegerNetwork:
    """The record of a rewritten graph; what is no longer read is taken out of the program's floats."""
    program.floats.keep({str(node.target) for node in program.graph.nodes if node.op == "get_attr"})
    tensors: dict[str, Tensor] = {}
    entries = []
    for node in layers:
        name = node.layer.name
        entries.append(_layer(node, program, decision, weights[name], obstacles[name], emissions.get(name)))
        tensors |= _tensors(entries[-1], weights[name], decision.grids)
    grids = tuple(decision.grids.values())
    inputs, outputs = name_tensors(program.takes, program.returns)
    structure = Structure(
        layers=tuple(entries),
        grids=grids,
        takes=program.takes,
        returns=program.returns,
        inputs=inputs,
        input_shapes=tuple(tuple(example.shape) for example in program.examples),
        input_types=tuple(str(example.dtype).removeprefix("torch.") for example in program.examples),
        batched=program.batched,
        outputs=outputs,
        removed=tuple(sorted(decision.removed)),
        other_macs=sum(entry.macs for entry in decision.topology.unsupported),
        other_parameters=decision.topology.other_parameters,
        notes=_notes(entries, grids, program, decision.topology.pooled_tensors - set(decision.grids)),
    )
    return IntegerNetwork(structure, tensors)


def _layer(
    node: LayerNode,
    program: FloatProgram,
    decision: Decision,
    weights: Weights,
    reason: str | None,
    emission: Emission | None,
) -> IntegerLayer:
    layer, geometry = node.layer, node.geometry
    grid = decision.grids.get(layer.activation)
    return IntegerLayer(
        name=layer.name,
        kind=layer.kind,
        parameter=layer.parameter,
        arithmetic="integer" if reason is None else "float",
        reason=reason,
        bits=weights.bits,
        weight_shape=tuple(weights.weight.shape),
        bias=weights.bias is not None,
        input=grid.name if grid is not None and grid.carrier is not None else None,
        output=None if emission is None else emission.grid,
        output_low=0 if emission is None else emission.low,
        output_high=0 if emission is None else emission.high,
        stride=geometry.stride,
        padding=geometry.padding,
        dilation=geometry.dilation,
        output_padding=geometry.output_padding,
        groups=_groups(layer, weights),
        macs=_macs(program, layer, weights, decision.removed),
    )


def _groups(layer: Layer, weights: Weights) -> int:
    return weights.weight.shape[0] if layer.depthwise else layer.groups


def _macs(program: FloatProgram, layer: Layer, weights: Weights, removed: frozenset[int]) -> int:
    """MACs of all calls for the example inputs, from the shapes that are left."""
    found = next(entry for entry in program.reading.layers if entry.name == layer.name)
    kept_in, kept_out = (
        sum(channel not in removed for channel in channels) for channels in (layer.in_channels, layer.out_channels)
    )
    spatial = 0 if layer.kind == "linear" else len(layer.weight_shape) - 2
    total = 0
    for call in found.calls:
        sizes = [list(shape(call.all_input_nodes[0])), list(shape(call))]
        for size, kept in zip(sizes, (kept_in, kept_out), strict=True):
            size[len(size) - 1 - spatial] = kept
        total += layer_macs(layer.kind, tuple(weights.weight.shape), *sizes)
    return total


def _bias_codes(weights: Weights, grid: Grid) -> Tensor:
    """The bias on the grid of input step times weight step."""
    assert weights.bias is not None
    assert weights.steps is not None
    return bias_codes(weights.bias, torch.tensor(grid.step) * weights.steps)


def _tensors(layer: IntegerLayer, weights: Weights, grids: Mapping[str, Grid]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    if weights.codes is None:
        tensors["weight"] = weights.weight
    else:
        assert weights.steps is not None
        tensors["codes"], tensors["steps"] = weights.codes, weights.steps
    if weights.bias is not None:
        tensors["bias"] = weights.bias
        if layer.arithmetic == "integer":
            assert layer.input is not None
            tensors["bias"] = _bias_codes(weights, grids[layer.input]).to(torch.int32)
    return {f"{layer.name}.{name}": tensor.detach().contiguous().clone() for name, tensor in tensors.items()}


def _notes(
    layers: list[IntegerLayer], grids: tuple[Grid, ...], program: FloatProgram, pooled: frozenset[str]
) -> tuple[str, ...]:
    notes = [f"{layer.name} computes in float: {layer.reason}" for layer in layers if layer.reason is not None]
    notes += [f"{grid.name} stays in float: it has {grid.bits} bits" for grid in grids if grid.carrier is None]
    notes += [
        f"{name} stays in float, and indices of a max-pool are taken from it: where values are equal up to rounding "
        "they may be others than in training. Way out: give it bits in the plan"
        for name in sorted(pooled)
    ]
    if not any(program.batched):
        notes.append("the network takes only batches of the size that it was attached with: its code fixes it")
    return tuple(notes)
