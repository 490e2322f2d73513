"""The rules by which operations pass the labels of channels on (see `channel_labels`).

Three families of operations keep track of channels: those that move data, pointwise ones, and those that work along
other dimensions than the channels (pooling, means); `head_rules` has those of attention. Every other operation ends a
channel: the channels that it reads cannot be removed, and its output is foreign, which means that no layer's channels
are in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from bayesbits.graph.channel_labels import (
    ZERO,
    ChannelClasses,
    Labels,
    collapse,
    collapse_together,
    compact,
    filled,
    one,
)
from bayesbits.graph.exported_program import operation, shape
from bayesbits.graph.pointwise import Criterion, is_pointwise

# fmt: off
MOVES = frozenset((
    "view", "_unsafe_view", "reshape", "permute", "transpose", "t", "movedim", "unsqueeze", "squeeze", "expand",
    "slice", "select", "narrow", "split", "split_with_sizes", "chunk", "unbind", "stack", "flip", "roll", "repeat",
    "unfold", "flatten", "unflatten", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle",
))
SAME = frozenset(("clone", "alias", "detach", "contiguous", "dropout", "to", "_to_copy", "lift_fresh_copy", "type_as"))
# fmt: on
REDUCTIONS = ("mean", "sum", "amax", "amin")
ZEROS = ("zeros", "zeros_like", "new_zeros")
PADS = ("pad", "constant_pad_nd")
CONSTANT = "a parameter or constant"
RESAMPLES = re.compile(r"_?(adaptive_)?(avg|max|lp)_pool(\d)d|upsample_[a-z_]+(\d)d")


def apply(node: fx.Node, labels: dict[fx.Node, Labels], classes: ChannelClasses, passes: Criterion) -> Labels:
    """The labels of a node's output, from those of its inputs; `passes` says which pointwise operations pass."""
    name = operation(node)
    if name == "getitem":
        whole, index = labels[node.all_input_nodes[0]], node.args[1]
        assert isinstance(whole, list)
        assert isinstance(index, int)
        return whole[index]
    for applies, rule in RULES:
        if applies(node, name):
            return rule(node, labels, classes)
    if is_pointwise(node):
        return _pointwise(node, labels, classes, passes)
    return end(node, labels, classes, f"passes {name.lstrip('_')}")


def end(node: fx.Node, labels: dict[fx.Node, Labels], classes: ChannelClasses, reason: str) -> Labels:
    """End the channels at a node: those that it reads cannot be removed, and its output is foreign."""
    if node.meta.get("val") is None:  # a check that makes nothing
        return []
    for used in node.all_input_nodes:
        for tensor in _tensors(labels.get(used, [])):
            classes.keep(tensor, reason)
    source = "the output of " + operation(node).lstrip("_")
    return filled(node.meta.get("val"), classes.foreign(source))


def _tensors(labels: Labels) -> Sequence[Tensor]:
    return labels if isinstance(labels, list) else [labels]


def _same(node: fx.Node, labels: dict[fx.Node, Labels], classes: ChannelClasses) -> Labels:
    return labels[node.all_input_nodes[0]]


def _zeros(node: fx.Node, labels: dict[fx.Node, Labels], classes: ChannelClasses) -> Labels:
    return filled(node.meta["val"], ZERO)


def _move(node: fx.Node, labels: dict[fx.Node, Labels], classes: ChannelClasses) -> Labels:
    """Move labels as the operation moves data. Views of expanded labels are reshapes."""
    target: Any = torch.ops.aten.reshape.default if operation(node) in ("view", "_unsafe_view") else node.target
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda used: labels[used])
    moved = target(*args, **kwargs)
    return compact(moved) if isinstance(moved, Tensor) else [compact(part) for part in moved]


def _concatenate(node: fx.Node, labels: dict[fx.Node, Labels], classes: ChannelClasses) -> Labels:
    parts = [one(labels[used]) for used in node.args[0]]  # type: ignore[index, union-attr]
    parts = [part for part in parts if part.shape != (0,)]  # torch.cat ignores empty tensors of any rank
    dim: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    joined = torch.cat(collapse_together(parts, keep=(dim,)), dim)
    return compact(joined.expand(shape(node)))


def _pad(node: fx.Node, labels: dict[fx.Node, Labels], classes: ChannelClasses) -> Labels:
    """Padding with zeros adds constant zeros, with another value it adds something foreign; other modes move data."""
    before = one(labels[node.all_input_nodes[0]])
    amounts: Any = node.args[1]
    mode, value = _pad_mode(node)
    if mode != "constant":
        return compact(torch.nn.functional.pad(before.double(), amounts, mode).long())
    padded = [before.dim() - 1 - index // 2 for index, amount in enumerate(amounts) if amount]
    small = collapse(before, keep=padded)
    fill = ZERO if not value else classes.foreign("a constant")
    return compact(torch.constant_pad_nd(small, list(amounts), fill).expand(shape(node)))


def _pad_mode(node: fx.Node) -> tuple[str, float]:
    rest: list[Any] = list(node.args[2:])
    kwargs: dict[str, Any] = dict(node.kwargs)
    if operation(node) == "constant_pad_nd":
        return "constant", rest[0] if rest else kwargs.get("value", 0.0)
    mode = rest[0] if rest else kwargs.get("mode", "constant")
    return mode, (rest[1] if len(rest) > 1 else kwargs.get("value")) or 0.0


def _reduce(node: fx.Node, labels: dict[fx.Node, Labels], classes: ChannelClasses) -> Labels:
    """A mean, sum or maximum over other dimensions than the channels; over the channels themselves they end.

    Over branches that were stacked, it is an addition: the channels that meet are one class.
    """
    before = one(labels[node.all_input_nodes[0]])
    given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    dims = [given] if isinstance(given, int) else list(given or range(before.dim()))
    dims = sorted((dim % before.dim() for dim in dims), reverse=True) if before.dim() else []
    small = collapse(before)
    over = [dim for dim in dims if small.shape[dim] > 1]
    if over:
        rows = small.movedim(over, list(range(len(over)))).flatten(0, len(over) - 1)
        if rows[0].numel() == 1 or bool(classes.dependent(rows).any()):
            return end(node, labels, classes, f"passes {operation(node)} over channels")
        small = _reduced(node, rows, classes).reshape([1 if dim in over else n for dim, n in enumerate(small.shape)])
    keepdim = len(before.shape) == len(shape(node))
    for dim in [] if keepdim else dims:
        small = small.squeeze(dim)
    return small.expand(shape(node))


def _reduced(node: fx.Node, rows: Tensor, classes: ChannelClasses) -> Tensor:
    """The labels of a sum of rows, whose channels meet; they stay where a row has something else than zeros."""
    result, lowest = rows.max(dim=0).values, rows.min(dim=0).values
    for row in rows:
        classes.unite(result, row)
    for label in torch.unique(lowest[lowest < ZERO]).tolist():
        classes.keep(result[lowest == label], f"passes {operation(node)} with {classes.source(label)}")
    return torch.where(result >= 0, result, lowest)


def _resample(node: fx.Node, labels: dict[fx.Node, Labels], classes: ChannelClasses) -> Labels:
    """Pooling and interpolation: the last dimensions change, the channels before them do not."""
    small = collapse(one(labels[node.all_input_nodes[0]]))
    matched = RESAMPLES.match(operation(node))
    assert matched is not None
    spatial = int(matched[3] or matched[4])
    if any(size > 1 for size in small.shape[small.dim() - spatial :]):
        return end(node, labels, classes, f"passes {operation(node)} over channels")
    value: Any = node.meta["val"]
    return small.expand(shape(node)) if isinstance(value, Tensor) else [small.expand(part.shape) for part in value]


def _pointwise(node: fx.Node, labels: dict[fx.Node, Labels], classes: ChannelClasses, passes: Criterion) -> Labels:
    """Channels that meet in a pointwise operation are one class, which stays where the operation does not pass them on.

    A product with something that is not zero keeps the zeros of the other side (a gate computed by a sigmoid, as in
    squeeze-and-excitation). The gate's channels, which do not come out as zero, are nevertheless one class with the
    gated ones, because both would have to be removed. This is conservative: such channels stay.
    """
    operands = list(node.all_input_nodes)
    if not operands:
        return filled(node.meta["val"], classes.foreign("a constant"))
    size = shape(node)
    wide = [_aligned(node, index, one(labels[used])).expand(size) for index, used in enumerate(operands)]
    parts = collapse_together(wide)
    common = [max(sizes) for sizes in zip(*(part.shape for part in parts), strict=True)]
    small = torch.stack([part.expand(common) for part in parts])
    dependent = classes.dependent(small)
    kinds = torch.where(dependent, 3, torch.where(small >= 0, 0, torch.where(small == ZERO, 1, 2)))
    result = torch.where(dependent & (kinds == 0).any(dim=0), ZERO, small).max(dim=0).values
    for kind in product(range(4), repeat=len(operands)):  # a channel, zero, foreign, dependent on a block of channels
        here = torch.stack([kinds[index] == wanted for index, wanted in enumerate(kind)]).all(dim=0)
        if not bool(here.any()):
            continue
        zero = passes(node, operands, [wanted >= 2 for wanted in kind])
        if 3 in kind and (zero or 0 not in kind):
            classes.unite_blocks(small[:, here].T)
        elif 0 in kind:
            _meet(node, small[:, here], zero, classes)
        else:
            lowest = int(small[:, here].min())  # ZERO where every operand is a constant zero
            result[here] = ZERO if zero else classes.foreign("a constant") if lowest == ZERO else lowest
    for index, used in enumerate(operands):
        own = _aligned(node, index, torch.empty(shape(used), device="meta")).shape
        _keep_beside_constant(node, own, small[index], result, classes)
    return compact(result.expand(size))


def _aligned(node: fx.Node, index: int, tensor: Tensor) -> Tensor:
    """An operand in the form in which it broadcasts: the slopes of a PReLU lie along dimension 1, not the last."""
    slopes = operation(node) == "prelu" and index == 1 and len(shape(node)) > 2
    return tensor.reshape(-1, *[1] * (len(shape(node)) - 2)) if slopes else tensor


def _meet(node: fx.Node, labels: Tensor, zero: bool, classes: ChannelClasses) -> None:
    """Put the channels that meet into one class; `zero` says whether the operation keeps their zeros."""
    atoms = labels.max(dim=0).values
    for row in labels:
        classes.unite(atoms, row)
    if not zero:
        foreign = sorted({int(label) for label in torch.unique(labels) if label < ZERO}, reverse=True)
        other = f" with {classes.source(foreign[0])}" if foreign else ""
        classes.keep(labels, f"passes {operation(node).lstrip('_')}{other}")


def _keep_beside_constant(
    node: fx.Node, own: Sequence[int], labels: Tensor, result: Tensor, classes: ChannelClasses
) -> None:
    """Keep channels that meet a foreign tensor with one value per channel, unless it is a parameter or constant.

    Those (a scale, slopes) are cut when they are read, as everything is in front of something that depends on blocks.
    Where the tensor has a value for each channel of a block, the same ones for every block (rotary embeddings of all
    heads), blocks can still go as a whole.
    """
    foreign = labels < ZERO
    if not bool(foreign.any()) or bool(classes.dependent(result[foreign]).all()):
        return
    strides, rank = compact(result).stride(), result.dim()
    varying = [dim - rank for dim in range(rank) if strides[dim] and result.shape[dim] > 1]
    along = [dim for dim in varying if -dim <= len(own) and own[dim] > 1]
    if along and len(along) < len(varying) and classes.blocks and bool(foreign.all()):
        blocks = [dim for dim in range(-rank, 0) if dim not in along]
        size = prod(result.shape[dim] for dim in blocks)
        classes.unite_blocks(result.permute(*blocks, *along).reshape(size, -1))
    elif along and not bool((labels[foreign] == classes.foreign(CONSTANT)).all()):
        source = classes.source(int(labels[foreign].max()))
        classes.keep(result[foreign], f"passes {operation(node).lstrip('_')} with a value per channel ({source})")


ChannelRule = Callable[[fx.Node, dict[fx.Node, Labels], ChannelClasses], Labels]


RULES: tuple[tuple[Callable[[fx.Node, str], bool], ChannelRule], ...] = (
    (lambda node, name: name in SAME, _same),
    (lambda node, name: name in MOVES and len(node.all_input_nodes) >= 1, _move),
    (lambda node, name: name == "cat", _concatenate),
    (lambda node, name: name in PADS, _pad),
    (lambda node, name: name in ZEROS, _zeros),
    (lambda node, name: name in REDUCTIONS, _reduce),
    (lambda node, name: RESAMPLES.match(name) is not None and len(node.all_input_nodes) == 1, _resample),
)
