"""The milliseconds of a plan, predicted from a `LatencyTable`, counted and expected, by one formula over tensors.

    latency = sum over layers of time(form, input channels, output channels) + overhead(activations, channels)

A layer whose weight and input have at most 8 bits computes in integers, and emits codes where the tensor behind it has
at most 8 bits, otherwise numbers. All other layers compute in float, with a dequantizer in front and a quantizer behind
them where their neighbors are codes. Times lie between those of the measured numbers of channels, and never fall with
more channels. The overhead is everything else, by the elements of the layers' inputs that are left.

Gates are independent, so expectations multiply. If all of them are 0 or 1, the expectation is the prediction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from bayesbits.records.latency_table import (
    CODES,
    FLOAT,
    FORMS,
    KINDS,
    NARROW_BITS,
    NUMBERS,
    LatencyTable,
    LayerShape,
    conversion_row,
    kind_of,
)
from bayesbits.records.plan import FLOAT_BITS
from bayesbits.records.topology import Layer, Topology

MOST_SAVED = 0.5
"""The part of the layers' time by which a network may be faster than the sum of its layers."""
_WORDS = {CODES: "integers that emits codes", NUMBERS: "integers that emits numbers", FLOAT: "float"}


class LatencyModel(nn.Module):
    """The milliseconds of a network's layers and of its overhead; it has no parameters and an empty state_dict."""

    in_knots: Tensor
    """[layers, counts]: the measured numbers of input channels, the last one repeated."""
    out_knots: Tensor
    """The same for output channels."""
    times: Tensor
    """[forms, layers, input counts, output counts]: milliseconds."""
    quantize: Tensor
    """[2, layers]: milliseconds of a quantizer behind the layer: without channels, and more for each output channel."""
    dequantize: Tensor
    """[2, layers]: the same of a dequantizer in front of the layer, for each input channel."""
    follows: Tensor
    """[layers]: whether the input channels are the output channels, as in a depthwise layer."""
    share: Tensor
    """[layers]: the layer's part of the elements of all inputs, by the number of its input channels."""
    part: Tensor
    """[layers]: the layer's part of the elements of all inputs but those of the network."""
    shares: Tensor
    """[kinds, points]: the parts of the elements at which the overhead is known, from 0 on."""
    overheads: Tensor
    """[kinds, points]: the overhead there."""

    def __init__(self, topology: Topology, table: LatencyTable) -> None:
        """Raises a ValueError where the table is that of another network, or is not finished."""
        super().__init__()
        table.check(topology)
        self.table = table
        shapes = {shape.name: shape for shape in table.layers}
        layers = [shapes[layer.name] for layer in topology.layers]
        self.tensors = tuple(
            (layer.parameter, layer.activation, shape.emits)
            for layer, shape in zip(topology.layers, layers, strict=True)
        )
        inputs = _numbers(len(layer.in_channels) for layer in topology.layers)
        outputs = _numbers(len(layer.out_channels) for layer in topology.layers)
        elements = _numbers(shape.in_elements for shape in layers)
        inner = _numbers(not topology.activation(name).network_input for _, name, _ in self.tensors) * elements
        inner = inner if inner.any() else elements
        buffers = {
            "in_knots": _padded([shape.in_counts or (1,) for shape in layers]),
            "out_knots": _padded([shape.out_counts for shape in layers]),
            "times": _times(table, layers),
            "quantize": _conversions(table, layers, "quantize", outputs),
            "dequantize": _conversions(table, layers, "dequantize", inputs),
            "follows": torch.tensor([not shape.in_counts for shape in layers]),
            "share": elements / elements.sum() / inputs,
            "part": inner / inner.sum(),
            **_overhead_points(table),
        }
        for name, values in buffers.items():
            self.register_buffer(name, values, persistent=False)

    def layer_ms(self, over: Mapping[str, Tensor], inputs: Tensor, outputs: Tensor) -> Tensor:
        """[layers]: the expected milliseconds of each.

        `over` holds the probability that a tensor has more than 8 bits, by its name; tensors that are not named have.
        `inputs` and `outputs` are the (expected) numbers of channels of every layer.
        """
        one = outputs.new_ones(())
        weight, activation, emitted = (
            torch.stack([one if name is None else over.get(name, one) for name in names])
            for names in zip(*self.tensors, strict=True)
        )
        return self.form_ms(weight, activation, emitted, inputs, outputs)

    def form_ms(self, weight: Tensor, activation: Tensor, emitted: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
        """The same from the probabilities that the three tensors of every layer have more than 8 bits."""
        codes = 1 - emitted
        integer = (1 - weight) * (1 - activation)
        ours, theirs = _basis(inputs, self.in_knots), _basis(outputs, self.out_knots)
        times = (self.times * ours[:, :, None] * theirs[:, None, :]).sum((2, 3))
        return (
            integer * (codes * times[0] + (1 - codes) * times[1])
            + (1 - integer) * (times[2] + codes * (self.quantize[0] + self.quantize[1] * outputs))
            + (1 - activation) * weight * (self.dequantize[0] + self.dequantize[1] * inputs)
        )

    def overhead_ms(self, over: Mapping[str, Tensor], wide: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """The expected milliseconds of everything but the layers; `wide` is like `over`, for more than 24 bits."""
        one = inputs.new_ones(())
        activations = [name for _, name, _ in self.tensors]
        above = (torch.stack([over.get(name, one) for name in activations]) * self.part).sum()
        float_part = (torch.stack([wide.get(name, one) for name in activations]) * self.part).sum()
        parts = torch.stack([1 - above, above - float_part, float_part])
        return (parts * self.kind_overheads(inputs)).sum()

    def kind_overheads(self, inputs: Tensor) -> Tensor:
        """[kinds]: the overhead where all activations are of one kind."""
        weights = _basis(self.kept_share(inputs).expand(len(KINDS)), self.shares)
        return (weights * self.overheads).sum(1)

    def least_overheads(self, inputs: Tensor) -> Tensor:
        """[kinds]: the least of these with so many channels or more: an overhead below zero may fall with them."""
        later = torch.where(self.shares > self.kept_share(inputs), self.overheads, torch.inf)
        return torch.minimum(self.kind_overheads(inputs), later.min(1).values)

    def total_ms(
        self, layers: Tensor, over: Mapping[str, Tensor], wide: Mapping[str, Tensor], inputs: Tensor
    ) -> Tensor:
        """The milliseconds of a network, from those of its layers.

        An overhead below zero, of layers that are faster together, takes at most a part of their time away.
        """
        total = layers.sum()
        return total + torch.maximum(self.overhead_ms(over, wide, inputs), -MOST_SAVED * total)

    def kept_share(self, inputs: Tensor) -> Tensor:
        """The part of the elements of the layers' inputs that is left."""
        return (self.share * inputs).sum()


def lacking(table: LatencyTable, widths: Mapping[str, Sequence[int]], topology: Topology) -> str | None:
    """What a table lacks for a search between these widths of every tensor, in words; None where it has everything.

    A tensor that is not named is in float.
    """
    shapes = {shape.name: shape for shape in table.layers}
    for layer in topology.layers:
        shape = shapes[layer.name]
        for form in possible_forms(layer, shape.emits, widths):
            if form not in shape.forms:
                return f"no time of {layer.name!r} in {_WORDS[form]}"
    kinds = {kind_of(width) for layer in topology.layers for width in widths.get(layer.activation, (FLOAT_BITS,))}
    gone = sorted(kinds - set(table.kinds()))
    return f"no overhead of a network with activations of {gone[0]} bits" if gone else None


def possible_forms(layer: Layer, emits: str | None, widths: Mapping[str, Sequence[int]]) -> tuple[str, ...]:
    """The forms that a layer can have, if `emits` names the tensor whose codes it emits where that is narrow."""
    weight, activation = widths.get(layer.parameter, (FLOAT_BITS,)), widths.get(layer.activation, (FLOAT_BITS,))
    behind = (FLOAT_BITS,) if emits is None else widths.get(emits, (FLOAT_BITS,))
    integer = max(min(weight), min(activation)) <= NARROW_BITS
    possible = {
        CODES: integer and min(behind) <= NARROW_BITS,
        NUMBERS: integer and max(behind) > NARROW_BITS,
        FLOAT: max(*weight, *activation) > NARROW_BITS,
    }
    return tuple(form for form in FORMS if possible[form])


def _basis(counts: Tensor, knots: Tensor) -> Tensor:
    """[layers, knots]: the weight of every knot in a linear interpolation; counts outside of the knots get the end."""
    low, high = knots[:, :-1], knots[:, 1:]
    wide = torch.where(high > low, high - low, torch.ones_like(low))
    along = torch.where(high > low, ((counts[:, None] - low) / wide).clamp(0.0, 1.0), torch.zeros_like(low))
    ends = counts.new_ones(len(counts), 1), counts.new_zeros(len(counts), 1)
    return torch.cat([ends[0], along], 1) - torch.cat([along, ends[1]], 1)


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    most = max(2, *map(len, rows))
    return torch.stack([_numbers((*row, *[row[-1]] * (most - len(row)))) for row in rows])


def _times(table: LatencyTable, layers: Sequence[LayerShape]) -> Tensor:
    """[forms, layers, input counts, output counts]: 0 for forms that are not measured."""
    inputs = max(2, *(len(shape.in_counts) for shape in layers))
    outputs = max(2, *(len(shape.out_counts) for shape in layers))
    times = torch.zeros(len(FORMS), len(layers), inputs, outputs, dtype=torch.float64)
    for number, shape in enumerate(layers):
        for form in shape.forms:
            measured = torch.stack(
                [_numbers(table.rows[shape.row(form, i, o)] for o in shape.out_counts) for i in shape.in_counts or (0,)]
            )
            rows = [min(i, len(measured) - 1) for i in range(inputs)]
            columns = [min(o, len(shape.out_counts) - 1) for o in range(outputs)]
            times[FORMS.index(form), number] = shape.calls * measured[rows][:, columns].clamp_min(0.0)
    return times.cummax(2).values.cummax(3).values


def _conversions(table: LatencyTable, layers: Sequence[LayerShape], what: str, channels: Tensor) -> Tensor:
    """[2, layers]: the milliseconds of one element, and what each channel adds; zeros where they are not measured."""
    least = table.rows.get(conversion_row(what, 1, image=False), 0.0)
    rows = [conversion_row(what, shape.conversions()[what], shape.image) for shape in layers]
    most = _numbers(table.rows.get(row, least) for row in rows)
    return torch.stack([torch.full_like(most, least), (most - least).clamp_min(0.0) / channels])


def _overhead_points(table: LatencyTable) -> dict[str, Tensor]:
    """For each kind of activations the measured overheads; a kind that is not measured has its neighbor's.

    Without any channels it is what the line through the last two points says, but neither below zero nor more than
    at the last point.
    """
    lines: dict[int, list[tuple[float, float]]] = {}
    for bits in table.kinds():
        points = sorted((one.share, one.ms) for one in table.overheads if one.bits == bits)
        (low, at_low), (high, at_high) = points[0], points[min(1, len(points) - 1)]
        start = at_low - low * (at_high - at_low) / (high - low) if high > low else at_low
        lines[bits] = [(0.0, min(max(0.0, start), max(0.0, at_low))), *points]
    nearest = [lines[min(lines, key=lambda bits: abs(bits - kind))] for kind in KINDS]
    most = max(map(len, nearest))
    padded = [[*points, *[points[-1]] * (most - len(points))] for points in nearest]
    return {
        "shares": torch.stack([_numbers(share for share, _ in points) for points in padded]),
        "overheads": torch.stack([_numbers(ms for _, ms in points) for points in padded]),
    }


def _numbers(values: Iterable[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)
