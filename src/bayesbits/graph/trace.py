"""Reading a network into a `Topology`.

`trace` exports the network, finds the weighted layers, follows their channels, and lists what it could not handle with
the reason. Where torch.export cannot take the network, it is read by a plain run with hooks (see `hook_trace`).
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, fx, nn

from bayesbits.graph.activation_products import (
    FoundProduct,
    find_activation_products,
    operand_nodes,
    read_nodes,
    sources_of,
)
from bayesbits.graph.channel_rules import MOVES, PADS, SAME
from bayesbits.graph.channels import Channels, follow_channels
from bayesbits.graph.emitted import (
    OutputSearch,
    find_clips,
    find_emitted,
    find_hard_swishes,
    find_origins,
    find_shared_ranges,
)
from bayesbits.graph.exported_program import Program, export, is_float, operation
from bayesbits.graph.free_norms import find_free_norms
from bayesbits.graph.hook_trace import COMPUTED, trace_with_hooks
from bayesbits.graph.layers import FoundLayer, find_layers, find_unsupported, layer_input, layer_kind, other_parameters
from bayesbits.graph.recurrent import find_recurrent_weights
from bayesbits.graph.residual import find_additions
from bayesbits.graph.squeeze_excitation import find_squeeze_excitations
from bayesbits.graph.tables import FoundTable, find_tables
from bayesbits.records.topology import Activation, Layer, Product, Topology, Unsupported
from bayesbits.utils.batches import split_inputs
from bayesbits.utils.short_names import list_names

UNTRACED = "Its layers can be quantized, but no channels can be removed, and it cannot be deployed"


def trace(
    model: nn.Module,
    example_inputs: Tensor | Sequence[Any] | Mapping[str, Any],
    *,
    activation_products: bool = False,
) -> Topology:
    """Read the topology of a network: its layers, their MACs and tensors, and which channels can be removed.

    The network is only read: its parameters, buffers, training flags and the random state stay as they are. Where
    torch.export cannot take the network, it is run once with hooks, and a warning says what is not known then.

    Args:
        model: The network.
        example_inputs: The inputs of one call: a tensor, a tuple or list of positional inputs, or a dict of keyword
            inputs. MACs are counted for their sizes, batch included.
        activation_products: Whether products of two computed tensors, as in attention, are read as products whose
            operands can be quantized; otherwise they are unsupported, and count at 32 bits.

    Returns:
        The topology; `print` shows it as a table.

    Raises:
        TypeError: If `example_inputs` has none of these forms.
        ValueError: If no convolution or linear layer runs for these inputs.

    Example::

        >>> import bayesbits as bb
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 10))
        >>> topology = bb.trace(model, torch.zeros(1, 3, 8, 8))
        >>> [(layer.name, layer.macs) for layer in topology.layers]
        [('0', 7776), ('3', 2880)]
        >>> [group.name for group in topology.removable_groups]
        ['0']
    """
    return trace_layers(model, example_inputs, activation_products=activation_products)[0]


def trace_layers(
    model: nn.Module,
    example_inputs: Tensor | Sequence[Any] | Mapping[str, Any],
    *,
    activation_products: bool = False,
) -> tuple[Topology, tuple[FoundLayer, ...], tuple[FoundProduct, ...]]:
    """The topology of a network, and its layers and products with their nodes; see `trace`.

    Without torch.export there are no nodes, and neither layers nor products are returned.
    """
    args, kwargs = split_inputs(example_inputs)
    found: tuple[FoundLayer, ...] = ()
    products: tuple[FoundProduct, ...] = ()
    try:
        program = export(model, args, kwargs)
    except Exception as error:  # torch.export raises many kinds of errors; a wrong input shows again in the plain run
        topology = trace_with_hooks(model, args, kwargs, error)
        _check_layers(model, topology)
        warnings.warn(f"{type(model).__name__}: {topology.unsupported[0].reason}. {UNTRACED}", stacklevel=3)
    else:
        reading = read(program, activation_products=activation_products)
        topology, found, products = reading.topology, reading.layers, reading.products
        _check_layers(model, topology)
    return topology, found, products


def _check_layers(model: nn.Module, topology: Topology) -> None:
    """Raise where a network has nothing to quantize, with what was found instead of layers."""
    if topology.layers:
        return
    name, computed = type(model).__name__, [entry for entry in topology.unsupported if entry.what == COMPUTED]
    if computed:
        raise ValueError(
            f"nothing of {name} can be quantized: {list_names([entry.name for entry in computed])}: "
            f"{computed[0].reason}. And {topology.unsupported[0].reason}, which finds only layers with parameters"
        )
    found = [f"{entry.name or 'the network'} ({entry.what})" for entry in topology.unsupported]
    others = ", ".join([*(f"{table.name} ({table.kind})" for table in topology.tables), *found])
    raise ValueError(
        f"no weighted layer of {name} runs for these inputs, so there is nothing to quantize; convolutions and "
        f"products with a matrix of parameters count. Found besides: {others or 'nothing'}"
    )


@dataclass(frozen=True)
class Reading:
    """The topology of an exported network, and the nodes that it was read from."""

    topology: Topology
    layers: tuple[FoundLayer, ...]
    products: tuple[FoundProduct, ...]
    operands: Mapping[str, fx.Node]
    """The node of every tensor in `Topology.operand_tensors`, by the tensor's name."""
    channels: Channels
    tables: tuple[FoundTable, ...]


def read(program: Program, *, activation_products: bool = False) -> Reading:
    """Read an exported network; products of two activations are unsupported unless they are asked for."""
    found = find_layers(program)
    not_layers = find_unsupported(program, found)
    tables, unsupported = find_tables(program, not_layers)
    recurrent, unsupported = find_recurrent_weights(program, unsupported)
    tables = (*tables, *recurrent)
    products = find_activation_products(program, found, tables, unsupported) if activation_products else ()
    multiplied = {node for product in products for node in product.nodes}
    weighted = {call for layer in found for call in layer.calls} | {
        node for node, entry in unsupported.items() if entry.macs
    }
    weighted |= {call for entry in recurrent for call in entry.calls}
    outputs = _output_layers(program, found, weighted)
    channels = follow_channels(program, found, not_layers, outputs)
    additions, missing, operands = find_additions(program, weighted, not_layers)
    only_operands = _only_operands(multiplied)
    emitted = find_emitted(program, found, outputs, operands, only_operands)
    images, sigmoids = find_squeeze_excitations(
        program, OutputSearch(program, found, operands, only_operands), find_origins(program, operands, emitted)
    )
    if images:  # a part of an image that is quantized needs no quantizer of its own
        emitted = find_emitted(program, found, outputs, operands | images, only_operands)
    clips, hard_swishes = find_clips(program, emitted), find_hard_swishes(emitted)
    emitted |= images | sigmoids
    activations, reads = _activations(program, found)
    tensors = {
        name: {layer_input(program, call) for layer in found if reads[layer.name] == name for call in layer.calls}
        for name in reads.values()
    }
    layers = tuple(_layer(layer, channels, reads[layer.name]) for layer in found)
    counted = [name for layer in found for name in layer.parameters] + [entry.table.parameter for entry in tables]
    norms = [layer.norm for layer in found if layer.norm is not None]
    sources = sources_of(products, found, tables)
    topology = Topology(
        layers=layers,
        activations=(*activations, *_product_operands(program, products)),
        additions=additions,
        emitted=tuple(name.removesuffix(".output") for name in emitted),
        shared_ranges=find_shared_ranges(emitted, operands | emitted, tensors, clips),
        clips=clips,
        hard_swishes=hard_swishes,
        sigmoids=tuple(sigmoids),
        groups=channels.groups,
        unsupported=(
            *(
                replace(entry, slices=channels.slices.get(node, ()))
                for node, entry in unsupported.items()
                if node not in multiplied
            ),
            *missing,
            *_unused_layers(program, found, unsupported),
        ),
        output_layers=outputs,
        other_parameters=other_parameters(program.model, counted, norms, _read_parameters(program)),
        traced=True,
        products=tuple(
            Product(
                one.name,
                one.operation,
                one.left,
                one.right,
                len(one.nodes),
                one.macs,
                sources[one.name],
                _slices(one.nodes, channels),
            )
            for one in products
        ),
        tables=tuple(entry.table for entry in tables),
        free_norms=find_free_norms(program, norms, operands | emitted),
    )
    return Reading(topology, found, products, operands | emitted, channels, tables)


def _product_operands(program: Program, products: Sequence[FoundProduct]) -> Iterator[Activation]:
    """The operands of products; the second product of an attention reads what the first one makes."""
    for product in products:
        operands = [operand_nodes(node) for node in product.nodes]
        for index, name in enumerate((product.left, product.right)):
            given = not product.name.endswith(".context") and all(
                _is_network_input(program, both[index]) for both in operands
            )
            yield Activation(name, (product.name,), given, product.known_ranges.get(name))


def _slices(nodes: Sequence[fx.Node], channels: Channels) -> tuple[int, ...]:
    """The channel classes of a product's heads; none where its calls have different ones."""
    found = {channels.slices.get(node, ()) for node in nodes}
    return found.pop() if len(found) == 1 else ()


def _only_operands(products: Collection[fx.Node]) -> dict[fx.Node, fx.Node]:
    """The tensors that are read as one operand of one product alone, with that product."""
    return {
        used: node
        for node in products
        for used in read_nodes(node)
        if list(used.users) == [node] and read_nodes(node).count(used) == 1
    }


def _read_parameters(program: Program) -> set[str]:
    """The first names of the parameters that an operation reads; modules that never run have none of them."""
    first = {id(parameter): name for name, parameter in program.model.named_parameters()}
    return {first[id(program.model.get_parameter(name))] for node, name in program.parameters.items() if node.users}


def _unused_layers(
    program: Program, found: tuple[FoundLayer, ...], unsupported: Mapping[fx.Node, Unsupported]
) -> list[Unsupported]:
    """Layers that run, but that torch.export leaves out because nothing reads their output."""
    known = {layer.name for layer in found} | {entry.name for entry in unsupported.values()}
    read = {program.parameters[node] for node in program.parameters if node.users}
    reason = "nothing that the network returns depends on its output; its MACs are not counted"
    return [
        Unsupported(name, "unused layer", 0, reason)
        for name in program.tensor_outputs
        if name not in known and layer_kind(program.model.get_submodule(name)) and f"{name}.weight" not in read
    ]


def _layer(found: FoundLayer, channels: Channels, activation: str) -> Layer:
    return Layer(
        name=found.name,
        kind=found.kind,
        parameter=found.parameter,
        weight_shape=found.weight_shape,
        groups=found.groups,
        bias=found.has_bias,
        calls=len(found.calls),
        macs=found.macs,
        norm=found.norm,
        activation=activation,
        in_channels=channels.inputs[found.name],
        out_channels=channels.outputs[found.name],
        depthwise=found.depthwise,
        followers=channels.followers.get(found.name, ()),
        instance_norm=found.instance_norm,
    )


def _activations(program: Program, layers: tuple[FoundLayer, ...]) -> tuple[tuple[Activation, ...], dict[str, str]]:
    """The tensors that layers read, and the name of the one that each layer reads.

    Layers share an activation if they read the same tensor in any of their calls, because a layer has one input
    quantizer.
    """
    tensors = {layer.name: [layer_input(program, call) for call in layer.calls] for layer in layers}
    first = {name: name for name in tensors}  # the first of the layers that each is joined with
    readers: dict[fx.Node, str] = {}
    for name, read in tensors.items():
        joined = {first[name], *(first[readers.setdefault(tensor, name)] for tensor in read)}
        leader = next(other for other in tensors if other in joined)
        first = {other: leader if current in joined else current for other, current in first.items()}
    activations = []
    for leader in dict.fromkeys(first.values()):
        consumers = tuple(name for name in tensors if first[name] == leader)
        given = all(_is_network_input(program, tensor) for name in consumers for tensor in tensors[name])
        activations.append(Activation(f"{leader}.input", consumers, given))
    return tuple(activations), {name: f"{leader}.input" for name, leader in first.items()}


def _is_network_input(program: Program, node: fx.Node) -> bool:
    """Whether a tensor is a float input of the network, which may have been moved, padded or cast."""
    while operation(node) in (*MOVES, *SAME, *PADS) and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return node in program.inputs and is_float(node)


def _output_layers(program: Program, layers: tuple[FoundLayer, ...], weighted: set[fx.Node]) -> tuple[str, ...]:
    """The layers from which a path without another weighted operation leads to the network's output."""
    reached: set[fx.Node] = set()
    waiting = list(program.outputs)
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            waiting += [] if node in weighted else node.all_input_nodes
    return tuple(layer.name for layer in layers if any(call in reached for call in layer.calls))
