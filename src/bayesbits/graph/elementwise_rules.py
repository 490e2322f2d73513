"""What operations on every element by itself do to the labels of channels (see `labels`).

Whether such an operation keeps zeros is not looked up in a list but tried: it is computed for zeros. So is whether it
passes a positive factor on: it is computed for numbers and for multiples of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, fx

from bayesbits.graph.channel_labels import ZERO, ChannelClasses, Labels, collapse_together, compact, filled, one
from bayesbits.graph.exported_program import operation, shape

UNTAGGED = ("hardswish", "prelu", "rsub", "where", "masked_fill")  # torch does not tag all of their forms as pointwise
PROBES = (0.7, -1.3, 2.0)
CHANNEL_PROBES = (-3e4, -70.0, -7.3, -2.1, -0.6, -1e-3, 1e-3, 0.4, 1.7, 5.2, 33.0, 2e4)
FACTORS = (0.3, 2.9)

# Asked of an operation, its operands, and which of those are foreign: may channels go through it?
Criterion = Callable[[fx.Node, Sequence[fx.Node], Sequence[bool]], bool]


def is_elementwise(node: fx.Node, name: str) -> bool:
    """Whether a node works on every element by itself, and makes one tensor."""
    tags = getattr(node.target, "tags", ())
    return (name in UNTAGGED or torch.Tag.pointwise in tags) and isinstance(node.meta.get("val"), Tensor)


def meet_elements(node: fx.Node, labels: dict[fx.Node, Labels], classes: ChannelClasses, passes: Criterion) -> Labels:
    """Channels that meet element by element: they belong together, and stay where the operation does not let them pass.

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
        zero = passes(node, operands, [wanted == 2 for wanted in kind])
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


def keeps_zero(node: fx.Node, operands: Sequence[fx.Node], foreign: Sequence[bool]) -> bool:
    """Whether the operation gives zero where its channels are zero, whatever its foreign operands are."""
    for trial in range(len(PROBES) if any(foreign) else 1):
        outcome = _outcome(node, operands, foreign, torch.zeros(1, dtype=torch.float64), trial)
        if outcome is None or bool((outcome != 0).any()):
            return False
    return True


def passes_factor(node: fx.Node, operands: Sequence[fx.Node], foreign: Sequence[bool]) -> bool:
    """Whether the operation is positively homogeneous in its channels: f(a x) = a f(x) for every a > 0.

    That gives zero for zeros too, as a f(0) = f(0).
    """
    probes = torch.tensor(CHANNEL_PROBES, dtype=torch.float64)
    for trial in range(len(PROBES)):
        before = _outcome(node, operands, foreign, probes, trial)
        for factor in FACTORS:
            after = _outcome(node, operands, foreign, probes, trial, factor)
            if before is None or after is None or not before.is_floating_point():
                return False
            if not torch.allclose(after, factor * before, rtol=1e-9, atol=0):
                return False
    return True


def _outcome(
    node: fx.Node,
    operands: Sequence[fx.Node],
    foreign: Sequence[bool],
    channels: Tensor,
    trial: int,
    factor: float = 1.0,
) -> Tensor | None:
    """What the operation makes of numbers for its channels, each operand in another order, and of some foreign number.

    None where it does not compute doubles, so that nothing is known of it.
    """
    target: Any = node.target
    values: dict[fx.Node, Tensor] = {}
    for index, (used, unknown) in enumerate(zip(operands, foreign, strict=True)):
        number = torch.full((1,), PROBES[(trial + index) % len(PROBES)], dtype=torch.float64)
        filling = number if unknown else factor * channels.roll(index * (2 * trial + 1))
        dtype = used.meta["val"].dtype
        values[used] = filling > 0 if dtype is torch.bool else filling if dtype.is_floating_point else filling.to(dtype)
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    try:
        outcome = target(*args, **kwargs)
    except (RuntimeError, TypeError):
        return None
    return outcome if isinstance(outcome, Tensor) else None


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
