"""Channels of zeros that make a convolution faster in onnxruntime: which layers read them, and how many.

A convolution that reads two or three channels is given channels of zeros up to four, and a depthwise one up to a
multiple of 16, which halves the time of either. A layer in front of a depthwise one emits these channels itself. They
are cut off again where something else reads the tensor; a convolution of all channels has weights of zero for them.
"""

import math
from collections.abc import Sequence

from bayesbits.records.integer_network import IntegerLayer

FEW_CHANNELS, PADDED_CHANNELS = (2, 3), 4
"""The runtime copies the channels of a window position by position, four bytes twice as fast as two or three."""
DEPTHWISE_BLOCK, DEPTHWISE_PART = 16, 8
"""The channels that the runtime's depthwise kernel computes at once, and those that it can still do at the end. Others
follow one by one."""
MANY_CHANNELS, MANY_POSITIONS = 56, 144
"""Where the time that whole blocks save is more than what padding and slicing take."""


def missing_channels(layer: IntegerLayer, shape: Sequence[int | None]) -> int:
    """How many channels of zeros are added behind the input of a convolution that emits codes of this shape."""
    if pads_depthwise(layer, shape):
        return -layer.groups % DEPTHWISE_BLOCK
    few = layer.kind == "conv" and layer.groups == 1 and layer.weight_shape[1] in FEW_CHANNELS
    return PADDED_CHANNELS - layer.weight_shape[1] if few else 0


def pads_depthwise(layer: IntegerLayer, shape: Sequence[int | None]) -> bool:
    """Whether a layer is a depthwise convolution that takes less time with whole blocks of channels."""
    if layer.kind != "conv" or layer.output is None or not 1 < layer.groups == layer.weight_shape[0]:
        return False
    left = layer.groups % DEPTHWISE_BLOCK
    slow = left % DEPTHWISE_PART != 0 or (left != 0 and layer.groups >= MANY_CHANNELS)
    return slow and layer.weight_shape[1] == 1 and math.prod(size or 1 for size in shape[2:]) >= MANY_POSITIONS
