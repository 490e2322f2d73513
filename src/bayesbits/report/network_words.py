"""What a row of the picture is and what it costs, in words: a layer, a product of two activations, or a table."""

from __future__ import annotations

from dataclasses import dataclass

from bayesbits.cost import Cost
from bayesbits.records.topology import RECURRENT, Layer, Topology
from bayesbits.report.network_graph import LAYER, PRODUCT, TABLE, Node


@dataclass(frozen=True)
class Description:
    """What a row says about its node; an addition, the input and the output have nothing of it."""

    words: str = ""
    """What it is, such as "conv 3 x 3, 64 to 128"."""
    costs: str = ""
    """Its costs as a sentence; empty without a plan."""
    share: float | None = None
    """Its share of the bit operations, in percent."""
    kept: tuple[int, int] | None = None
    """Output channels that are kept, and of how many."""


def describe(topology: Topology, node: Node, cost: Cost | None) -> Description:
    """What a node is, and what it costs where that is known."""
    if node.kind == LAYER:
        return _layer(topology.layer(node.name), cost)
    if node.kind == PRODUCT:
        return _product(next(one.operation for one in topology.products if one.name == node.name), node.name, cost)
    if node.kind == TABLE:
        table = next(one for one in topology.tables if one.name == node.name)
        recurrent = table.kind == RECURRENT
        words = f"{'recurrent weight' if recurrent else 'table'}, {table.rows:,} x {table.columns:,}"
        found = None if cost is None else next((one for one in cost.tables if one.name == node.name), None)
        if found is None:
            return Description(words)
        if recurrent:
            costs = f"{found.macs:,} MACs, {found.bops:,} BOPs, {found.weight_bytes:,} bytes; activations are float."
            return Description(words, costs, found.share)
        return Description(words, f"{found.weight_bytes:,} bytes; rows are looked up, and nothing is multiplied.")
    return Description()


def layer_words(layer: Layer) -> str:
    """The kind of a layer with its kernel and channels."""
    inputs, outputs = len(layer.in_channels), len(layer.out_channels)
    if layer.kind == "linear":
        return f"linear, {inputs} to {outputs}"
    size = " x ".join(map(str, layer.weight_shape[2:]))
    kind = {"conv": "conv", "conv_transpose": "transposed conv"}.get(layer.kind, layer.kind)
    if layer.depthwise:
        return f"depthwise {kind} {size}, {outputs} channels"
    groups = f" in {layer.groups} groups" if layer.groups > 1 else ""
    return f"{kind} {size}, {inputs} to {outputs}{groups}"


def _layer(layer: Layer, cost: Cost | None) -> Description:
    found = None if cost is None else next((one for one in cost.layers if one.name == layer.name), None)
    if found is None:
        return Description(layer_words(layer))
    inputs, outputs = len(layer.in_channels), len(layer.out_channels)
    costs = (
        f"{found.macs:,} MACs, {found.bops:,} BOPs, {found.weight_bytes:,} bytes; "
        f"{found.kept_in} of {inputs} channels in, {found.kept_out} of {outputs} out."
    )
    return Description(layer_words(layer), costs, found.share, (found.kept_out, outputs))


def _product(operation: str, name: str, cost: Cost | None) -> Description:
    words = "product of two activations"
    found = None if cost is None else next((one for one in cost.products if one.name == name), None)
    if found is None:
        return Description(words)
    costs = f"{found.macs:,} MACs, {found.bops:,} BOPs; computed by {operation}, without a weight."
    return Description(words, costs, found.share)
