"""Bit operations, counted and expected, by one formula over tensors.

    BOPs(layer) = MACs x weight bits x activation bits x the share of its (input, output) channel pairs that is present

The gates of a layer give the probability that each of its output channels is on. A channel class is present unless it
is off in every layer that makes it; gates are independent, so expectations multiply. A class that a layer both reads
and makes counts once: E[z z] = E[z]. If all gates are 0 or 1 and all widths are integers, the expectation is the count.

Everything that depends on the network alone is computed once. Classes that appear equally often among the inputs and
outputs of every layer are bundled, so that a step costs a gather, a few products and sums over small matrices of layers
by bundles.

A product of two activations has MACs x the widths of both operands x the share of its heads that is present, where it
is computed head by head; so has one in float, at 32 x 32 bits. A weight of a recurrent layer has MACs x its width x 32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from bayesbits.cost.cost import Cost, LayerCost, ProductCost, TableCost
from bayesbits.cost.indices import cost_indices
from bayesbits.cost.latency import LatencyModel
from bayesbits.cost.size import BIAS_BYTES, bias_elements, packed_bytes, weight_elements
from bayesbits.records.latency_table import NARROW_BITS, ROUNDED_BITS, LatencyTable
from bayesbits.records.plan import FLOAT_BITS, Plan
from bayesbits.records.topology import RECURRENT, Topology

FLOAT_BOPS = FLOAT_BITS * FLOAT_BITS
Convention = Literal["exact", "paper"]


class CostModel(nn.Module):
    """The cost of a network, counted for plans and in expectation. It has no parameters and an empty state_dict."""

    reads: Tensor
    """[layers, bundles]: how many of a layer's input channels belong to each class of a bundle."""
    makes: Tensor
    """The same for output channels."""
    bundle_of: Tensor
    """[classes]: the bundle of each channel class."""
    producers: Tensor
    """[a power of two, classes]: the indices of the gates that make a class, in the vector of `_values`."""
    own: Tensor
    """[output channels of all layers]: the index of each channel's gate, in the paper's convention."""
    layer_of: Tensor
    """[output channels of all layers]: the layer of each."""
    joined: Tensor
    """[layers]: whether a residual addition joins channels that the layer reads."""
    depthwise: Tensor
    """[layers]: whether a layer filters each channel by itself."""
    inputs: Tensor
    """[layers]: how many input channels there are."""
    outputs: Tensor
    """[layers]: how many output channels there are."""
    macs: Tensor
    """[layers]: the MACs."""
    pair_elements: Tensor
    """[layers]: the elements of the weight for each pair of input and output channels; 0 for a weight that an earlier
    layer has."""
    all_pairs: Tensor
    """[layers]: how many pairs of input and output channels there are; of a depthwise layer, how many channels."""
    weight_stays: Tensor
    """[layers]: whether the weight keeps its size whatever channels are removed, as that of a grouped convolution."""
    has_bias: Tensor
    """[layers]: whether there is a bias when the layer is deployed."""
    zero_and_one: Tensor
    product_macs: Tensor
    """[products]: the MACs of the products of two activations."""
    unsupported_macs: Tensor
    """[unsupported parts]: their MACs."""
    heads: Tensor
    """[classes of heads]: the channel classes that are heads of products."""
    head_counts: Tensor
    """[products and unsupported parts, classes of heads and one more]: how many heads of each have that class; the last
    column is 1 for those that are not computed head by head."""

    def __init__(self, topology: Topology, step_bytes: Mapping[str, int] | None = None) -> None:
        """`step_bytes`: what the steps of a weight take where groups of its inputs have their own, by its name."""
        super().__init__()
        self.topology = topology
        self._step_bytes = dict(step_bytes or {})
        self._weights = [layer.parameter for layer in topology.layers]
        self._activations = [layer.activation for layer in topology.layers]
        self._gated = {layer.name: len(layer.out_channels) for layer in topology.layers if not layer.depthwise}
        self._float_bops = float(topology.macs * FLOAT_BOPS)
        self._operands = [(product.left, product.right) for product in topology.products]
        self._recurrent = {name: table for name, table in topology.table_tensors.items() if table.kind == RECURRENT}
        for name, entries in (("product_macs", topology.products), ("unsupported_macs", topology.unsupported)):
            macs = torch.tensor([entry.macs for entry in entries], dtype=torch.int64)
            self.register_buffer(name, macs, persistent=False)
        for name, values in cost_indices(topology).items():
            self.register_buffer(name, values, persistent=False)
        # A plain container: times keep their precision where this module is moved to another one.
        self._latency: tuple[LatencyModel, ...] = ()

    def relative_bops(
        self, widths: Mapping[str, Tensor], on: Mapping[str, Tensor], convention: Convention = "exact"
    ) -> Tensor:
        """The expected bit operations in percent of those at 32 x 32 bits, unsupported parts included.

        `widths` holds the (expected) width of every weight and activation by the tensor's name, `on` the probability
        that each output channel is on, by the layer's name; the channels of a layer that is not named are on.
        """
        bops = self.layer_bops(widths, on, convention).sum()
        if len(self.head_counts):
            parts = self.present_parts(on, bops.dtype)
            bops = bops + FLOAT_BOPS * (self.unsupported_macs * parts[len(self._operands) :]).sum()
            bops = bops + self.product_bops(widths, parts).sum()
        for name, table in self._recurrent.items():
            bops = bops + table.macs * FLOAT_BITS * widths.get(name, FLOAT_BITS)
        return 100 * bops / self._float_bops

    def product_bops(self, widths: Mapping[str, Tensor], parts: Tensor) -> Tensor:
        """The expected bit operations of every product of two activations; `parts` as `present_parts` has them."""
        if not self._operands:
            return parts[:0]
        bits = [torch.stack([widths[both[side]] for both in self._operands]) for side in (0, 1)]
        return self.product_macs * parts[: len(self._operands)] * bits[0] * bits[1]

    def present_parts(self, on: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """The expected part of each product, and then of each unsupported part, whose heads are present."""
        always = self.zero_and_one[1:].to(dtype)
        present = torch.cat([self._present(self._values(on, dtype)).index_select(0, self.heads), always])
        return (self.head_counts * present).sum(1) / self.head_counts.sum(1)

    def layer_bops(
        self, widths: Mapping[str, Tensor], on: Mapping[str, Tensor], convention: Convention = "exact"
    ) -> Tensor:
        """The expected bit operations of every layer."""
        weight_bits = torch.stack([widths[name] for name in self._weights])
        activation_bits = torch.stack([widths[name] for name in self._activations])
        present = self._present_pairs(self._values(on, weight_bits.dtype), convention)
        return self.macs * present * weight_bits * activation_bits

    def weight_bytes(self, widths: Mapping[str, Tensor], on: Mapping[str, Tensor]) -> Tensor:
        """The expected bytes of packed weights, biases and parameters that stay in float; arguments as above.

        Where all gates are 0 or 1 it is what `count` counts, but for the last byte of every weight, which may be begun,
        and the steps of groups, which weights of 32 bits do not have.
        """
        weight_bits = torch.stack([widths[name] for name in self._weights])
        values = self._values(on, weight_bits.dtype)
        inputs, outputs, more = self._channels(self._present(values))
        pairs = torch.where(self.depthwise, outputs, inputs * outputs + more)
        elements = torch.where(self.weight_stays, self.all_pairs, pairs) * self.pair_elements
        bits = (elements * weight_bits).sum() + 8 * BIAS_BYTES * (outputs * self.has_bias).sum()
        for name, table in self.topology.table_tensors.items():
            bits = bits + table.elements * widths[name] if name in widths else bits + table.elements * FLOAT_BITS
        bits = bits + 8 * sum(self._step_bytes.values())  # which no gate changes
        return bits / 8 + packed_bytes(self.topology.other_parameters, FLOAT_BITS)

    def latency_ms(
        self, table: LatencyTable, over: Mapping[str, Tensor], wide: Mapping[str, Tensor], on: Mapping[str, Tensor]
    ) -> Tensor:
        """The expected milliseconds by a table; `over` and `wide` as in `LatencyModel`, `on` as above."""
        dtype = next(iter(over.values())).dtype
        inputs, outputs, _ = self._channels(self._present(self._values(on, dtype)))
        model = self.latency_model(table)
        return model.total_ms(model.layer_ms(over, inputs, outputs), over, wide, inputs)

    def latency_model(self, table: LatencyTable) -> LatencyModel:
        """The times of a table as tensors; made once. A ValueError where the table is that of another network."""
        if not self._latency or self._latency[0].table is not table:
            self._latency = (LatencyModel(self.topology, table),)
        return self._latency[0].to(self.macs.device)

    def count(self, plan: Plan, table: LatencyTable | None = None) -> Cost:
        """The cost of a plan; a ValueError where it does not fit the network. With a table, its latency too."""
        plan.check(self.topology)
        device, dtype = self.macs.device, torch.float64
        widths = {name: torch.tensor(float(bits), dtype=dtype, device=device) for name, bits in plan.bits.items()}
        on = self._channels_on(plan)
        inputs, outputs = self.channel_counts(plan)
        shares = self.present_parts(on, dtype).tolist()
        bops, products = self.layer_bops(widths, on).tolist(), self._count_products(widths, shares)
        entries = zip(self.topology.unsupported, shares[len(products) :], strict=True)
        unsupported = sum(round(entry.macs * share) for entry, share in entries)
        tables = _count_tables(self.topology, plan)
        of_tables = sum(table.bops for table in tables)
        total = sum(bops) + sum(product.bops for product in products) + of_tables + unsupported * FLOAT_BOPS
        layers = self._count_layers(plan, inputs.tolist(), outputs.tolist(), bops, total)
        products = tuple(replace(product, share=100 * product.bops / total) for product in products)
        tables = tuple(replace(table, share=100 * table.bops / total) for table in tables)
        latency = None
        if table is not None:
            layers, latency = self._count_latency(table, plan, layers, inputs, outputs)
        other = self.topology.other_parameters
        parts: tuple[LayerCost | TableCost | ProductCost, ...] = (*layers, *tables, *products)
        return Cost(
            macs=sum(part.macs for part in parts) + unsupported,
            bops=sum(part.bops for part in parts) + unsupported * FLOAT_BOPS,
            relative_bops=self.relative_bops(widths, on).item(),
            paper_relative_bops=self.relative_bops(widths, on, "paper").item(),
            weight_bytes=sum(part.weight_bytes for part in parts) + packed_bytes(other, FLOAT_BITS),
            parameters=sum(part.parameters for part in parts) + other,
            layers=layers,
            latency_ms=latency,
            tables=tables,
            products=products,
        )

    def channel_counts(self, plan: Plan) -> tuple[Tensor, Tensor]:
        """[layers], each: the numbers of input and of output channels that a plan leaves, in float64."""
        inputs, outputs, _ = self._channels(self._present(self._values(self._channels_on(plan), torch.float64)))
        return inputs, outputs

    def _channels_on(self, plan: Plan) -> dict[str, Tensor]:
        """For every layer that loses channels 1 for those that stay, and 0 for the others."""
        on = {name: self.macs.new_zeros(self._gated[name], dtype=torch.float64) for name in plan.kept}
        for name, kept in plan.kept.items():
            on[name][list(kept)] = 1.0
        return on

    def _count_products(self, widths: Mapping[str, Tensor], parts: list[float]) -> tuple[ProductCost, ...]:
        """The cost of every product of two activations; their shares are not known yet."""
        counted = []
        for product, part in zip(self.topology.products, parts, strict=False):
            left, right = (round(widths[name].item()) for name in (product.left, product.right))
            macs = round(product.macs * part)
            counted.append(ProductCost(product.name, macs, left, right, macs * left * right, 0.0))
        return tuple(counted)

    def dense(self) -> Cost:
        """The cost of the whole network in float."""
        return self.count(Plan.uniform(self.topology, FLOAT_BITS, FLOAT_BITS, FLOAT_BITS, residual_bits=None))

    def _count_latency(
        self, table: LatencyTable, plan: Plan, layers: tuple[LayerCost, ...], inputs: Tensor, outputs: Tensor
    ) -> tuple[tuple[LayerCost, ...], float]:
        """The layers with their milliseconds, and those of the whole network; a layer that is gone takes none."""
        model = self.latency_model(table)
        over, wide = (
            {name: inputs.new_tensor(float(bits > limit)) for name, bits in plan.bits.items()}
            for limit in (NARROW_BITS, ROUNDED_BITS)
        )
        times = model.layer_ms(over, inputs, outputs)
        times = times * times.new_tensor([float(layer.weight_bits > 0) for layer in layers])
        timed = tuple(replace(layer, latency_ms=time) for time, layer in zip(times.tolist(), layers, strict=True))
        return timed, model.total_ms(times, over, wide, inputs).item()

    def _values(self, on: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """One vector with P(on) of the output channels of all layers but depthwise ones, then a zero and a one."""
        for name, probabilities in on.items():
            if probabilities.shape != (self._gated.get(name, -1),):
                raise ValueError(
                    f"on[{name!r}] has shape {tuple(probabilities.shape)}; it takes one value for each output channel "
                    "of a layer that is not depthwise"
                )
        constants = self.zero_and_one.to(dtype)
        parts = [on[name] if name in on else constants[1:].expand(count) for name, count in self._gated.items()]
        return torch.cat([*parts, constants])

    def _present(self, values: Tensor) -> Tensor:
        """The probability that each channel class is present: 1 - prod (1 - P(on)) over the gates that make it."""
        absent = 1 - values.index_select(0, self.producers.flatten()).reshape(self.producers.shape)
        while absent.shape[0] > 1:  # torch.prod and torch.cumprod may wait for the device in their backward
            absent = absent[0::2] * absent[1::2]
        return 1 - absent[0]

    def _channels(self, present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For each layer the expected numbers of its input and output channels, and the expected number of their pairs
        beyond the product of the two: the variance of the classes that it both reads and makes."""
        bundles = present.new_zeros(self.reads.shape[1])
        number = bundles.index_add(0, self.bundle_of, present)
        variance = bundles.index_add(0, self.bundle_of, present * (1 - present))
        # Sums of products, as matrix products would be rounded to half precision under autocast.
        return (
            (self.reads * number).sum(1),
            (self.makes * number).sum(1),
            (self.reads * self.makes * variance).sum(1),
        )

    def _present_pairs(self, values: Tensor, convention: Convention) -> Tensor:
        """The share of each layer's pairs of input and output channels that is present."""
        inputs, outputs, more = self._channels(self._present(values))
        if convention == "exact":
            pairs = inputs * outputs + more
        elif convention == "paper":
            inputs = torch.where(self.joined, self.inputs, inputs)
            outputs = torch.zeros_like(outputs).index_add(0, self.layer_of, values.index_select(0, self.own))
            pairs = inputs * outputs
        else:
            raise ValueError(f"convention is {convention!r}; it is 'exact' or 'paper'")
        return torch.where(self.depthwise, outputs / self.outputs, pairs / (self.inputs * self.outputs))

    def _count_layers(
        self, plan: Plan, inputs: list[float], outputs: list[float], bops: list[float], total: float
    ) -> tuple[LayerCost, ...]:
        """The cost of every layer, from its present channels, its bit operations and those of the network."""
        counted: set[str] = set()
        layers = []
        for layer, kept_in, kept_out, layer_bops in zip(
            self.topology.layers, map(round, inputs), map(round, outputs), bops, strict=True
        ):
            bits = plan.bits[layer.parameter]
            weights = 0 if layer.parameter in counted else weight_elements(layer, kept_in, kept_out)
            steps = self._step_bytes.get(layer.parameter, 0) if weights and 0 < bits < FLOAT_BITS else 0
            counted.add(layer.parameter)
            biases = bias_elements(layer, kept_out)
            if bits == 0:  # the layer is gone, though other layers still make its channels
                kept_in = kept_out = weights = biases = 0
            pairs = kept_out if layer.depthwise else kept_in * kept_out
            all_pairs = len(layer.out_channels) * (1 if layer.depthwise else len(layer.in_channels))
            layers.append(
                LayerCost(
                    name=layer.name,
                    macs=layer.macs * pairs // all_pairs,
                    weight_bits=bits,
                    activation_bits=plan.bits[layer.activation],
                    kept_in=kept_in,
                    kept_out=kept_out,
                    bops=round(layer_bops),
                    share=100 * layer_bops / total,
                    weight_bytes=packed_bytes(weights, bits) + biases * BIAS_BYTES + steps,
                    parameters=weights + biases,
                )
            )
        return tuple(layers)


def _count_tables(topology: Topology, plan: Plan) -> tuple[TableCost, ...]:
    """The cost of every table, whose share is not known yet; one that the plan does not name is float."""
    found = []
    for name, table in topology.table_tensors.items():
        bits = plan.bits.get(name, FLOAT_BITS)
        size, bops = packed_bytes(table.elements, bits), table.macs * bits * FLOAT_BITS
        found.append(TableCost(table.name, bits, size, table.elements, table.macs, bops))
    return tuple(found)
