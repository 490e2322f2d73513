"""Pointwise operations: which nodes are one, whether they keep zeros, and whether they pass a factor on or ignore it.

A pointwise operation computes every element of its output from the elements at the same place of its operands. Whether
it keeps zeros is not looked up in a list but tried: it is computed for zeros. Whether it passes a positive factor on is
tried in the same way: it is computed for numbers and for multiples of them.

The values of an operand are either the channels of a layer, or *foreign*: no layer makes them, so nothing is known of
them, and the operation is tried with several numbers in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from bayesbits.graph.exported_program import is_float, operation

UNTAGGED = ("hardswish", "prelu", "rsub", "where", "masked_fill")  # torch does not tag all of their forms as pointwise
FOREIGN_PROBES = (0.7, -1.3, 2.0)
CHANNEL_PROBES = (-3e4, -70.0, -7.3, -2.1, -0.6, -1e-3, 1e-3, 0.4, 1.7, 5.2, 33.0, 2e4)
FACTORS = (0.3, 2.9)

# Whether channels may pass an operation; its arguments are the operation, its operands, and which of those are foreign.
Criterion = Callable[[fx.Node, Sequence[fx.Node], Sequence[bool]], bool]


def is_pointwise(node: fx.Node) -> bool:
    """Whether a node is a pointwise operation that makes one tensor."""
    tags = getattr(node.target, "tags", ())
    return (operation(node) in UNTAGGED or torch.Tag.pointwise in tags) and isinstance(node.meta.get("val"), Tensor)


def is_function(node: fx.Node) -> bool:
    """Whether a node is a pointwise operation on one float tensor and on constants."""
    return (
        node.op == "call_function"
        and len(node.all_input_nodes) == 1
        and is_pointwise(node)
        and is_float(node)
        and is_float(node.all_input_nodes[0])
        and isinstance(node.args[0], fx.Node)
        and not any(isinstance(value, fx.Node) for value in (*node.args[1:], *node.kwargs.values()))
    )


def apply_functions(nodes: Sequence[fx.Node], x: Tensor) -> Tensor:
    """Apply pointwise operations on one tensor (see `is_function`) to x, one after the other."""
    for node in nodes:
        target: Any = node.target
        x = target(x, *node.args[1:], **node.kwargs)
    return x


def keeps_zero(node: fx.Node, operands: Sequence[fx.Node], foreign: Sequence[bool]) -> bool:
    """Whether the operation gives zero where its channels are zero, for every number tried as a foreign operand."""
    for trial in range(len(FOREIGN_PROBES) if any(foreign) else 1):
        outcome = _outcome(node, operands, foreign, torch.zeros(1, dtype=torch.float64), trial)
        if outcome is None or bool((outcome != 0).any()):
            return False
    return True


def passes_factor(node: fx.Node, operands: Sequence[fx.Node], foreign: Sequence[bool]) -> bool:
    """Whether the operation is positively homogeneous in its channels: f(a x) = a f(x) for every a > 0.

    Such an operation keeps zeros too, as a f(0) = f(0).
    """
    probes = torch.tensor(CHANNEL_PROBES, dtype=torch.float64)
    for trial in range(len(FOREIGN_PROBES)):
        before = _outcome(node, operands, foreign, probes, trial)
        for factor in FACTORS:
            after = _outcome(node, operands, foreign, probes, trial, factor)
            if before is None or after is None or not before.is_floating_point():
                return False
            if not torch.allclose(after, factor * before, rtol=1e-9, atol=0):
                return False
    return True


def ignores_factor(node: fx.Node, operands: Sequence[fx.Node], foreign: Sequence[bool]) -> bool:
    """Whether a positive factor of its channels does not show, though they do: f(a x) = f(x), as for a sign.

    Results that are no floats have no gradient, and do not show it either. A result of zeros alone, or one that cannot
    be computed, says nothing.
    """
    probes = torch.tensor(CHANNEL_PROBES, dtype=torch.float64)
    shows = False
    for trial in range(len(FOREIGN_PROBES)):
        before = _outcome(node, operands, foreign, probes, trial)
        if before is None:
            return False
        shows = shows or bool((before != 0).any())
        for factor in FACTORS if before.is_floating_point() else ():
            after = _outcome(node, operands, foreign, probes, trial, factor)
            if after is None or not torch.allclose(after, before, rtol=1e-9, atol=0, equal_nan=True):
                return False
    return shows


def _outcome(
    node: fx.Node,
    operands: Sequence[fx.Node],
    foreign: Sequence[bool],
    channels: Tensor,
    trial: int,
    factor: float = 1.0,
) -> Tensor | None:
    """The operation's result for these numbers as channels, in another order for each operand, and a foreign number.

    None where it does not compute doubles, so that nothing is known of it.
    """
    target: Any = node.target
    values: dict[fx.Node, Tensor] = {}
    for index, (used, unknown) in enumerate(zip(operands, foreign, strict=True)):
        number = torch.full((1,), FOREIGN_PROBES[(trial + index) % len(FOREIGN_PROBES)], dtype=torch.float64)
        filling = number if unknown else factor * channels.roll(index * (2 * trial + 1))
        dtype = used.meta["val"].dtype
        values[used] = filling > 0 if dtype is torch.bool else filling if dtype.is_floating_point else filling.to(dtype)
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    try:
        outcome = target(*args, **kwargs)
    except (RuntimeError, TypeError):
        return None
    return outcome if isinstance(outcome, Tensor) else None
