"""How large the sums of a layer on codes can become: up to 2^24 float32 holds every one of them exactly."""

import torch

from bayesbits.records.integer_network import IntegerLayer, IntegerNetwork
from bayesbits.records.topology import output_axis

EXACT_IN_FLOAT32 = 2**24
MOST_PARTS = 8
"""A layer that needs more is left to the runtime's kernel for sums of any size; so many were not timed."""


def largest_sum(network: IntegerNetwork, layer: IntegerLayer) -> int:
    """An upper bound of the magnitude of every partial sum that a layer accumulates."""
    assert layer.input is not None
    grid = network.grid(layer.input)
    codes, bias = network.codes(layer.name).to(torch.int64).abs(), network.bias(layer.name)
    axis = output_axis(layer.kind, layer.groups)
    rows = codes.movedim(axis, 0).flatten(1).sum(1) * max(-grid.low, grid.high)
    if bias is None or network.adds_bias_to_numbers(layer):
        return int(rows.max()) if rows.numel() else 0
    if rows.shape == bias.shape:
        rows = rows + bias.to(torch.int64).abs()
    else:
        rows = rows.sum() + bias.to(torch.int64).abs().max()
    return int(rows.max()) if rows.numel() else 0


def exact_parts(network: IntegerNetwork, layer: IntegerLayer) -> list[int] | None:
    """The numbers of input channels of the parts in which a convolution is computed exactly in float32, each by itself.

    One part holds the bias, too. None where more than `MOST_PARTS` were needed, or where there are groups.
    """
    if largest_sum(network, layer) < EXACT_IN_FLOAT32:
        return [layer.weight_shape[1]]
    if layer.groups > 1:
        return None
    assert layer.input is not None
    grid = network.grid(layer.input)
    sums = network.codes(layer.name).to(torch.int64).abs().flatten(2).sum(2) * max(-grid.low, grid.high)
    for count in range(2, min(MOST_PARTS, sums.shape[1]) + 1):
        parts = sums.tensor_split(count, 1)
        if max(int(part.sum(1).max()) for part in parts) < EXACT_IN_FLOAT32:
            return [part.shape[1] for part in parts]
    return None
