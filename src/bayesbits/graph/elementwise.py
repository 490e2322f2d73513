"""What operations on every element by itself do to the labels of channels (see `labels`).

Whether such an operation keeps zeros is not looked up in a list but tried: it is computed for zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, fx

from bayesbits.graph.exported import operation, shape
from bayesbits.graph.labels import ZERO, ChannelClasses, Labels, collapse_together, compact, filled, one

UNTAGGED = ("hardswish", "prelu", "rsub", "where", "masked_fill")  # torch does not tag all of their forms as pointwise
PROBES = (0.7, -1.3, 2.0)


def is_elementwise(node: fx.Node, name: str) -> bool:
    """Whether a node works on every element by itself, and makes one tensor."""
    tags = getattr(node.target, "tags", ())
    return (name in UNTAGGED or torch.Tag.pointwise in tags) and isinstance(node.meta.get("val"), Tensor)


def meet_elements(node: fx.Node, labels: dict[fx.Node, Labels], classes: ChannelClasses) -> Labels:
    """Channels that meet element by element: they belong together, and stay where zeros do not give zero.

    A product with something that is no zero keeps the zeros of the other side (a gate computed by a sigmoid, as in
    squeeze-and-excitation); yet the gate's channels, which do not come out as zero, are one class with the gated ones,
    because both would have to be cut. That is conservative: such channels stay.
    """
    operands = list(node.all_input_nodes)
    if not operands:
        return filled(node.meta["val"], classes.foreign("a constant"))
    size = shape(node)
    wide = [_aligned(node, index, one(labels[used])).expand(size) for index, used in enumerate(operands)]
    parts = collapse_together(wide)
    common = [max(sizes) for sizes in zip(*(part.shape for part in parts), strict=True)]
    small = torch.stack([part.expand(common) for part in parts])
    kinds = torch.where(small >= 0, 0, torch.where(small == ZERO, 1, 2))  # a channel, zero, foreign
    result = small.max(dim=0).values
    for kind in product(range(3), repeat=len(operands)):
        here = torch.stack([kinds[index] == wanted for index, wanted in enumerate(kind)]).all(dim=0)
        if not bool(here.any()):
            continue
        zero = _keeps_zero(node, operands, [wanted == 2 for wanted in kind])
        if 0 in kind:
            _meet(node, small[:, here], zero, classes)
        else:
            lowest = int(small[:, here].min())  # ZERO where every operand is a constant zero
            result[here] = ZERO if zero else classes.foreign("a constant") if lowest == ZERO else lowest
    for index, used in enumerate(operands):
        _keep_beside_constant(
            node, _aligned(node, index, torch.empty(shape(used), device="meta")).shape, small[index], result, classes
        )
    return compact(result.expand(size))


def _aligned(node: fx.Node, index: int, tensor: Tensor) -> Tensor:
    """An operand in the form in which it broadcasts: the slopes of a PReLU lie along dimension 1, not the last."""
    slopes = operation(node) == "prelu" and index == 1 and len(shape(node)) > 2
    return tensor.reshape(-1, *[1] * (len(shape(node)) - 2)) if slopes else tensor


def _meet(node: fx.Node, labels: Tensor, zero: bool, classes: ChannelClasses) -> None:
    """Put the channels that meet in one class; say why they stay, where they do."""
    atoms = labels.max(dim=0).values
    for row in labels:
        classes.unite(atoms, row)
    if not zero:
        foreign = sorted({int(label) for label in torch.unique(labels) if label < ZERO}, reverse=True)
        other = f" with {classes.source(foreign[0])}" if foreign else ""
        classes.keep(labels, f"passes {operation(node).lstrip('_')}{other}")


def _keeps_zero(node: fx.Node, operands: Sequence[fx.Node], foreign: Sequence[bool]) -> bool:
    """Whether the operation gives zero where its channels are zero, whatever its foreign operands are."""
    target: Any = node.target
    for trial in range(len(PROBES) if any(foreign) else 1):
        values: dict[fx.Node, Tensor] = {}
        for index, (used, unknown) in enumerate(zip(operands, foreign, strict=True)):
            number = PROBES[(trial + index) % len(PROBES)] if unknown else 0.0
            dtype = used.meta["val"].dtype
            filling = torch.float64 if dtype.is_floating_point else dtype
            values[used] = torch.full((1,), number > 0 if dtype is torch.bool else number, dtype=filling)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        try:
            outcome = target(*args, **kwargs)
        except (RuntimeError, TypeError, NotImplementedError):  # not for one double: then it is not known to keep zeros
            return False
        if not isinstance(outcome, Tensor) or bool((outcome != 0).any()):
            return False
    return True


def _keep_beside_constant(
    node: fx.Node, own: Sequence[int], labels: Tensor, result: Tensor, classes: ChannelClasses
) -> None:
    """A tensor with one value per channel that no layer makes (a scale, slopes) could not be cut with the channels."""
    foreign = labels < ZERO
    if not bool(foreign.any()):
        return
    strides, rank = compact(result).stride(), result.dim()
    varying = [dim - rank for dim in range(rank) if strides[dim] and result.shape[dim] > 1]
    if any(-dim <= len(own) and own[dim] > 1 for dim in varying):
        source = classes.source(int(labels[foreign].max()))
        classes.keep(result[foreign], f"passes {operation(node).lstrip('_')} with a value per channel ({source})")
