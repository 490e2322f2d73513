"""The last pass: the `IntegerNetwork` of the rewritten graph, which every runtime reads."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bayesbits.cost.macs import layer_macs
from bayesbits.deploy.decision import Decision
from bayesbits.deploy.dynamic_shapes import fixed_size_notes
from bayesbits.deploy.layer_weights import LayerWeights
from bayesbits.deploy.rewrite.program import LayerNode, ProductNode, RewrittenProgram
from bayesbits.deploy.signature import name_tensors
from bayesbits.graph.exported_program import shape
from bayesbits.graph.layers import data_of
from bayesbits.records.integer_network import (
    Grid,
    IntegerLayer,
    IntegerNetwork,
    IntegerProduct,
    IntegerTable,
    Structure,
    bias_numbers,
)
from bayesbits.records.topology import Product, Unsupported, remaining_macs
from bayesbits.utils.pytree import Tree


def write_record(program: RewrittenProgram) -> None:
    """Write the record, and remove the float tensors that nothing reads any more."""
    program.floats.remove_unread({str(node.target) for node in program.graph.nodes if node.op == "get_attr"})
    decision, topology = program.decision, program.reading.topology
    layers: list[IntegerLayer] = []
    tensors: dict[str, Tensor] = {}
    for entry in program.layers:
        weights, grid = decision.weights[entry.layer.name], decision.grids.get(entry.layer.activation)
        layers.append(_layer(program, entry, weights, grid))
        tensors |= _tensors(entry, weights, grid, last=entry.layer.name in topology.output_layers)
    tables = [table for table in topology.tables if table.name in decision.tables]
    for table in tables:
        tensors |= {
            f"{table.name}.{name}": tensor.detach().contiguous().clone()
            for name, tensor in decision.tables[table.name].tensors.items()
        }
    inputs, outputs = name_tensors(program.takes, program.returns)
    dynamic = {place for size in program.dynamic.sizes for place in size.places}
    structure = Structure(
        layers=tuple(layers),
        grids=tuple(decision.grids.values()),
        takes=program.takes,
        returns=program.returns,
        inputs=inputs,
        input_shapes=tuple(tuple(example.shape) for example in program.examples),
        input_types=tuple(str(example.dtype).removeprefix("torch.") for example in program.examples),
        batched=tuple((number, 0) in dynamic for number in range(len(program.examples))),
        outputs=outputs,
        removed=tuple(sorted(decision.removed)),
        other_macs=_other_macs(program),
        other_parameters=topology.other_parameters
        + sum(table.elements for table in topology.tables if table.name not in decision.tables),
        notes=_notes(program),
        tables=tuple(
            IntegerTable(
                name=table.name,
                parameter=table.parameter,
                bits=decision.tables[table.name].bits,
                rows=table.rows,
                columns=table.columns,
                kind=table.kind,
                macs=table.macs,
            )
            for table in tables
        ),
        products=tuple(_product(entry, decision) for entry in program.products),
        sizes=program.dynamic.sizes,
        fixed_sizes=tuple(fixed_size_notes(program.dynamic, inputs, program.examples)),
    )
    program.record = IntegerNetwork(structure, tensors)


def _other_macs(program: RewrittenProgram) -> int:
    """The MACs of what is unsupported, of weights of recurrent layers in float, and of products none of whose operands
    is quantized."""
    topology, quantized = program.reading.topology, {entry.product.name for entry in program.products}
    counted: list[Product | Unsupported] = [*topology.unsupported]
    counted += [product for product in topology.products if product.name not in quantized]
    in_float = sum(table.macs for table in topology.tables if table.name not in program.decision.tables)
    return in_float + sum(remaining_macs(entry, program.decision.removed) for entry in counted)


def _layer(program: RewrittenProgram, entry: LayerNode, weights: LayerWeights, grid: Grid | None) -> IntegerLayer:
    layer, geometry, emits = entry.layer, entry.geometry, entry.emits
    return IntegerLayer(
        name=layer.name,
        kind=layer.kind,
        parameter=layer.parameter,
        arithmetic="integer" if entry.float_reason is None else "float",
        reason=entry.float_reason,
        bits=weights.bits,
        weight_shape=weights.shape,
        bias=weights.bias is not None,
        input=grid.name if grid is not None and grid.carrier is not None else None,
        output=None if emits is None else emits.grid,
        output_low=0 if emits is None else emits.low,
        output_high=0 if emits is None else emits.high,
        stride=geometry.stride,
        padding=geometry.padding,
        dilation=geometry.dilation,
        output_padding=geometry.output_padding,
        groups=weights.shape[0] if layer.depthwise else layer.groups,
        macs=_macs(program, entry, weights),
        group_size=weights.group_size if weights.codes is not None else None,
        dynamic=entry.dynamic,
    )


def _product(entry: ProductNode, decision: Decision) -> IntegerProduct:
    product, emits, grids = entry.product, entry.emits, decision.grids
    left, right = (
        name if name in grids and grids[name].carrier is not None else None for name in (product.left, product.right)
    )
    return IntegerProduct(
        name=product.name,
        arithmetic="integer" if entry.float_reason is None else "float",
        reason=entry.float_reason,
        left=left,
        right=right,
        output=None if emits is None else emits.grid,
        output_low=0 if emits is None else emits.low,
        output_high=0 if emits is None else emits.high,
        macs=remaining_macs(product, decision.removed),
    )


def _macs(program: RewrittenProgram, entry: LayerNode, weights: LayerWeights) -> int:
    """MACs of all calls for the example inputs, with the channels that remain."""
    layer, removed = entry.layer, program.decision.removed
    found = next(found for found in program.reading.layers if found.name == layer.name)
    inputs, outputs = (
        sum(channel not in removed for channel in channels) for channels in (layer.in_channels, layer.out_channels)
    )
    spatial = 0 if layer.kind == "linear" else len(layer.weight_shape) - 2
    total = 0
    for call in found.calls:
        sizes = [list(shape(data_of(call))), list(shape(call))]
        for size, channels in zip(sizes, (inputs, outputs), strict=True):
            size[len(size) - 1 - spatial] = channels
        total += layer_macs(layer.kind, weights.shape, *sizes)
    return total


def _tensors(entry: LayerNode, weights: LayerWeights, grid: Grid | None, *, last: bool) -> dict[str, Tensor]:
    """The tensors of a layer by their names in the record; `last`: whether no other is behind it.

    The bias of a layer that computes with integers is a number of steps. Linear layers that emit numbers add it to
    these, as the runtime's kernel does; the last layers do not, so that equal sums of two classes stay equal.
    """
    tensors: dict[str, Tensor] = {}
    if weights.codes is None:
        assert weights.weight is not None
        tensors["weight"] = weights.weight
    else:
        assert weights.steps is not None
        tensors["codes"], tensors["steps"] = weights.codes, weights.steps
    if weights.bias is not None:
        tensors["bias"] = weights.bias
        if entry.float_reason is None and not entry.dynamic:
            assert grid is not None
            codes = weights.bias_codes(grid)
            tensors["bias"] = codes.to(torch.int32)
            if entry.layer.kind == "linear" and entry.emits is None and not last:
                assert weights.steps is not None
                tensors["bias"] = bias_numbers(codes, grid.step, weights.steps)
    return {f"{entry.layer.name}.{name}": tensor.detach().contiguous().clone() for name, tensor in tensors.items()}


def _notes(program: RewrittenProgram) -> tuple[str, ...]:
    grids = program.decision.grids
    notes = [
        f"{entry.layer.name} computes in float: {entry.float_reason}"
        for entry in program.layers
        if entry.float_reason is not None
    ]
    notes += [
        f"{entry.product.name} computes in float: {entry.float_reason}"
        for entry in program.products
        if entry.float_reason is not None
    ]
    widened = [count for entry in program.layers if (count := program.decision.weights[entry.layer.name].widened)]
    if widened:
        notes.append(
            f"{sum(widened)} output channels of {len(widened)} layers have a coarser grid of weights than their ranges "
            "ask for, so that their biases fit into 32 bits; beside these, such small weights cannot be seen"
        )
    notes += [f"{grid.name} stays in float: it has {grid.bits} bits" for grid in grids.values() if grid.carrier is None]
    notes += [
        f"{name} stays in float, and indices of a max-pool are taken from it: where values are equal up to rounding "
        "they may be others than in training. To fix this: give it bits in the plan"
        for name in sorted(program.reading.topology.pooled_tensors - set(grids))
    ]
    notes += [
        f"{'.'.join(path)} is returned as a dict: it is an object that cannot be built again from its tensors"
        for path in _plain_objects(program.returns)
    ]
    return tuple(notes)


def _plain_objects(returns: Tree, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The outermost objects in what a network returns whose class cannot be built again."""
    if returns.kind == "object" and not returns.type:
        yield path or ("the output",)
        return
    for label, item in zip(returns.labels(), returns.items, strict=True):
        yield from _plain_objects(item, (*path, label))
