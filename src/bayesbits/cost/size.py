"""The size of a layer's weight and bias: elements, and bytes with codes packed at their widths."""

from __future__ import annotations

from math import prod

from bayesbits.records.topology import Layer

BIAS_BYTES = 4
STEP_BYTES = 4
"""Counted where groups of inputs have steps of their own; the one step of a weight or of a channel is not."""


def weight_elements(layer: Layer, kept_in: int, kept_out: int) -> int:
    """The elements of a layer's weight that stay with these numbers of input and output channels."""
    elements = prod(layer.weight_shape)
    if layer.depthwise:
        return elements // len(layer.out_channels) * kept_out
    if layer.groups > 1:  # the channels of a grouped convolution stay
        return elements
    return elements // (len(layer.in_channels) * len(layer.out_channels)) * kept_in * kept_out


def bias_elements(layer: Layer, kept_out: int) -> int:
    """The elements of the bias that the layer has when it is deployed: its own, or that of a folded batch norm."""
    return kept_out if layer.bias or layer.norm is not None else 0


def packed_bytes(elements: int, bits: int) -> int:
    """The bytes of this many codes, packed without gaps."""
    return (elements * bits + 7) // 8
