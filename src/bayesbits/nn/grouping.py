"""Groups of a weight: runs of neighboring inputs of one output, each with a range of its own.

A weight [outputs, inputs] is seen as rows of one group each, [outputs * groups, size], for which a quantizer has a
range for each index of axis 0, as it has for output channels otherwise. Where the number of inputs is no multiple of
the size, the last group of every output is filled up with zeros, which are codes of every grid.
"""

import torch.nn.functional as F
from torch import Tensor


def group_count(inputs: int, size: int) -> int:
    """How many groups of this size an output has."""
    return -(-inputs // size)


def in_groups(weight: Tensor, size: int) -> Tensor:
    """A weight as rows of one group each."""
    inputs = weight.shape[1]
    missing = group_count(inputs, size) * size - inputs
    return (F.pad(weight, (0, missing)) if missing else weight).reshape(-1, size)


def out_of_groups(rows: Tensor, inputs: int) -> Tensor:
    """The weight of rows that `in_groups` made, for this number of inputs."""
    size = rows.shape[1]
    return rows.reshape(-1, group_count(inputs, size) * size)[:, :inputs]


def along_groups(values: Tensor, inputs: int, size: int) -> Tensor:
    """One value for each group of each output, in the shape of the weight."""
    groups = group_count(inputs, size)
    return values.reshape(-1, groups).repeat_interleave(size, dim=1)[:, :inputs]
