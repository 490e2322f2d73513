"""Groups of a convolution that onnxruntime computes together, with weights of zero between them.

Its integer kernels multiply the matrices of one group after the other, which is slow where groups have a few
channels. Neighboring groups are merged up to 32 input channels, which takes a quarter of the time for groups of 4
(ResNeXt) and is the fastest number for filters of 1 to 7 by 7. A depthwise convolution has a kernel of its own, and
stays. Products with weights of zero are zero, so that all sums are the same integers.
"""

import numpy as np

from bayesbits.deploy.onnx.node_writer import NodeWriter
from bayesbits.records.integer_network import IntegerLayer

MERGED_CHANNELS, ALL_CHANNELS = 32, 64
"""The most input channels of a group after merging, and of a layer whose groups all become one."""


def merged_groups(layer: IntegerLayer) -> int:
    """How many neighboring groups of a layer become one."""
    outputs, inputs = layer.weight_shape[0] // layer.groups, layer.weight_shape[1]
    if layer.kind != "conv" or outputs == inputs == 1:
        return 1
    if layer.groups * inputs <= ALL_CHANNELS:
        return layer.groups
    fitting = max(1, MERGED_CHANNELS // inputs)
    return max(number for number in range(1, fitting + 1) if layer.groups % number == 0)


def write_merged_weight(writer: NodeWriter, layer: IntegerLayer, weight: str, name: str) -> tuple[str, int]:
    """The weight with merged groups, which the runtime makes once when it loads the file, and the number of groups.

    [blocks, groups, outputs, 1, inputs] -> [blocks, groups, outputs, groups, inputs], zero between different groups.
    """
    merged = merged_groups(layer)
    if merged == 1:
        return weight, layer.groups
    outputs, inputs, *filters = layer.weight_shape
    apart = [layer.groups // merged, merged, outputs // layer.groups, 1, inputs, *filters]
    own = np.eye(merged, dtype=bool).reshape(1, merged, 1, merged, 1, *[1] * len(filters))
    whole = [outputs, merged * inputs, *filters]
    split = writer.constant(f"{layer.name}.weight.apart", np.array(apart))
    same = writer.constant(f"{layer.name}.weight.own", own)
    joined = writer.constant(f"{layer.name}.weight.whole", np.array(whole))
    parts = writer.add("Reshape", [weight, split], f"{name}/weight/apart")
    blocks = writer.add("Where", [same, parts, writer.constant("no weight", np.int8(0))], f"{name}/weight/blocks")
    return writer.add("Reshape", [blocks, joined], f"{name}/weight/merged"), layer.groups // merged
