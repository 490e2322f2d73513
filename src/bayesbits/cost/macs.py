"""Multiply-accumulates (MACs) of weighted layers and of other operations, for the shapes of the example inputs.

The batch is included. One multiply-accumulate is one weight times one value; biases
are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import prod
from typing import Any, Self


def layer_macs(kind: str, weight_shape: Sequence[int], input_shape: Sequence[int], output_shape: Sequence[int]) -> int:
    """MACs of one call of a layer.

    A weight's shape leaves out its own side of the groups: (out, in / groups, kernel) for a convolution, where every
    output element meets `in / groups * kernel` weights; (in, out / groups, kernel) for a transposed one, where every
    input element does; (out, in) for a linear layer.
    """
    elements = prod(input_shape) if kind == "conv_transpose" else prod(output_shape)
    return elements * prod(weight_shape[1:])


def attention_macs(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> int:
    """MACs of both products of scaled dot-product attention, from shapes (..., positions, features), mask or not."""
    return prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def recurrent_macs(data: Sequence[int], matrices: Sequence[Sequence[int]]) -> int:
    """MACs of a recurrent module: every weight matrix meets every position of the input once."""
    return prod(data[:-1]) * sum(prod(sizes) for sizes in matrices)


def operation_macs(operation: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """MACs of any torch operation, from the shapes of its (fake) operands; 0 for one that multiplies no matrices."""
    with MacCounter() as counter:
        operation(*args, **kwargs)
    return counter.macs


class MacCounter(ExitStack):
    """Counts the MACs of all operations inside a `with` block that torch knows how to count."""

    def __enter__(self) -> Self:
        from torch.utils.flop_counter import FlopCounterMode  # here, as it imports triton: a quarter of a second

        super().__enter__()
        self._counter = self.enter_context(FlopCounterMode(display=False))
        return self

    @property
    def macs(self) -> int:
        """The MACs that were counted so far."""
        return int(self._counter.get_total_flops()) // 2  # torch counts a multiplication and an addition as two
