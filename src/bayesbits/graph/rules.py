"""What operations do to the labels of channels (see `labels`).

Three families keep track of channels: operations that move data, operations on every element by itself, and
operations that work along other dimensions than the channels (pooling, means). Whether an element-wise operation
keeps zeros is not looked up but tried: it is computed for zeros. Everything else ends the way of a channel: what it
reads must stay, and what it makes is foreign.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, fx

from bayesbits.graph.exported import operation, shape
from bayesbits.graph.labels import ZERO, ChannelClasses, collapse, collapse_together, compact

Labels = Tensor | list[Tensor]

# fmt: off
MOVES = frozenset((
    "view", "_unsafe_view", "reshape", "permute", "transpose", "t", "movedim", "unsqueeze", "squeeze", "expand",
    "slice", "select", "narrow", "split", "split_with_sizes", "chunk", "unbind", "stack", "flip", "roll", "repeat",
    "unfold", "flatten", "unflatten", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle",
))
SAME = frozenset(("clone", "alias", "detach", "contiguous", "dropout", "to", "_to_copy", "lift_fresh_copy", "type_as"))
# fmt: on
ELEMENTWISE = ("hardswish", "prelu", "rsub", "where", "masked_fill")  # torch does not tag all of their forms
REDUCTIONS = ("mean", "sum", "amax", "amin")
ZEROS = ("zeros", "zeros_like", "new_zeros")
PADS = ("pad", "constant_pad_nd")
RESAMPLES = re.compile(r"_?(adaptive_)?(avg|max|lp)_pool(\d)d|upsample_[a-z_]+(\d)d")
PROBES = (0.7, -1.3, 2.0)


def apply(node: fx.Node, labels: dict[fx.Node, Labels], classes: ChannelClasses) -> Labels:
    """The labels of a node's output, from those of its inputs."""
    name = operation(node)
    if name == "getitem":
        whole, index = labels[node.all_input_nodes[0]], node.args[1]
        assert isinstance(whole, list)
        assert isinstance(index, int)
        return whole[index]
    for applies, rule in RULES:
        if applies(node, name):
            return rule(node, labels, classes)
    return end(node, labels, classes, f"passes {name.lstrip('_')}")


def end(node: fx.Node, labels: dict[fx.Node, Labels], classes: ChannelClasses, reason: str) -> Labels:
    """Channels end here: what the node reads must stay, and what it makes is nobody's channels."""
    if node.meta.get("val") is None:  # a check that makes nothing
        return []
    for used in node.all_input_nodes:
        for tensor in _tensors(labels.get(used, [])):
            classes.keep(tensor, reason)
    source = "the output of " + operation(node).lstrip("_")
    return filled(node.meta.get("val"), classes.foreign(source))


def filled(value: Any, label: int) -> Labels:
    """Labels for a tensor, or several, all of one kind."""
    if isinstance(value, Tensor):
        return torch.tensor(label).expand(tuple(int(size) for size in value.shape))
    if isinstance(value, (tuple, list)):
        return [_one(filled(item, label)) for item in value]
    return torch.tensor(label)


def _one(labels: Labels) -> Tensor:
    assert isinstance(labels, Tensor)
    return labels


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
    parts = [_one(labels[used]) for used in node.args[0]]  # type: ignore[index, union-attr]
    parts = [part for part in parts if part.shape != (0,)]  # torch lets empty tensors of any rank pass
    dim: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    joined = torch.cat(collapse_together(parts, keep=(dim,)), dim)
    return compact(joined.expand(shape(node)))


def _pad(node: fx.Node, labels: dict[fx.Node, Labels], classes: ChannelClasses) -> Labels:
    """Padding with zeros adds constant zeros, with another value it adds something foreign; other modes move data."""
    before = _one(labels[node.all_input_nodes[0]])
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
    """A mean, sum or maximum over other dimensions than the channels; over the channels themselves they end."""
    before = _one(labels[node.all_input_nodes[0]])
    given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    dims = [given] if isinstance(given, int) else list(given or range(before.dim()))
    dims = sorted((dim % before.dim() for dim in dims), reverse=True) if before.dim() else []
    small = collapse(before)
    if any(small.shape[dim] > 1 for dim in dims):
        return end(node, labels, classes, f"passes {operation(node)} over channels")
    keepdim = len(before.shape) == len(shape(node))
    for dim in [] if keepdim else dims:
        small = small.squeeze(dim)
    return small.expand(shape(node))


def _resample(node: fx.Node, labels: dict[fx.Node, Labels], classes: ChannelClasses) -> Labels:
    """Pooling and interpolation: the last dimensions change, the channels before them do not."""
    small = collapse(_one(labels[node.all_input_nodes[0]]))
    matched = RESAMPLES.match(operation(node))
    assert matched is not None
    spatial = int(matched[3] or matched[4])
    if any(size > 1 for size in small.shape[small.dim() - spatial :]):
        return end(node, labels, classes, f"passes {operation(node)} over channels")
    value: Any = node.meta["val"]
    return small.expand(shape(node)) if isinstance(value, Tensor) else [small.expand(part.shape) for part in value]


def _elementwise(node: fx.Node, labels: dict[fx.Node, Labels], classes: ChannelClasses) -> Labels:
    """Channels that meet element by element: they belong together, and stay where zeros do not give zero.

    A product with something that is no zero keeps the zeros of the other side (a gate computed by a sigmoid, as in
    squeeze-and-excitation); yet the gate's channels, which do not come out as zero, are one class with the gated ones,
    because both would have to be cut. That is conservative: such channels stay.
    """
    operands = list(node.all_input_nodes)
    if not operands:
        return filled(node.meta["val"], classes.foreign("a constant"))
    size = shape(node)
    wide = [_aligned(node, index, _one(labels[used])).expand(size) for index, used in enumerate(operands)]
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
            result[here] = ZERO if zero else int(small[:, here].min())
    for index, used in enumerate(operands):
        _keep_beside_constant(
            node, _aligned(node, index, torch.empty(shape(used))).shape, small[index], result, classes
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
    varying = [
        dim - result.dim() for dim in range(result.dim()) if compact(result).stride(dim) and result.shape[dim] > 1
    ]
    if any(-dim <= len(own) and own[dim] > 1 for dim in varying):
        source = classes.source(int(labels[foreign].max()))
        classes.keep(result[foreign], f"passes {operation(node).lstrip('_')} with a value per channel ({source})")


Rule = Callable[[fx.Node, dict[fx.Node, Labels], ChannelClasses], Labels]


def _is_elementwise(node: fx.Node, name: str) -> bool:
    tags = getattr(node.target, "tags", ())
    return (name in ELEMENTWISE or torch.Tag.pointwise in tags) and isinstance(node.meta.get("val"), Tensor)


RULES: tuple[tuple[Callable[[fx.Node, str], bool], Rule], ...] = (
    (lambda node, name: name in SAME, _same),
    (lambda node, name: name in MOVES and len(node.all_input_nodes) >= 1, _move),
    (lambda node, name: name == "cat", _concatenate),
    (lambda node, name: name in PADS, _pad),
    (lambda node, name: name in ZEROS, _zeros),
    (lambda node, name: name in REDUCTIONS, _reduce),
    (lambda node, name: RESAMPLES.match(name) is not None and len(node.all_input_nodes) == 1, _resample),
    (_is_elementwise, _elementwise),
)
