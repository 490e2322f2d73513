"""The rules by which products of two computed tensors pass the labels of channels on: attention heads.

A product of two stacks of matrices has as many *slices* as there are matrices in a stack. Slices do not mix: where the
labels differ from slice to slice, as they do after a view has split channels into heads, a slice is computed from the
channels of one head. Nothing here knows what attention is; there are two rules for any such product:

- The result depends on the slice: it is something that is not read once the slice is removed (scores of queries and
  keys). All channels of a slice become one block.
- Where one operand depends on slices alone (probabilities), and the other one holds channels along the axis that is not
  summed over (values), the result is zero where those channels are: it has their labels. So the block of a head can be
  removed with the input channels of the layer that reads the result.

Softmax passes what depends on a slice on. A slice may also be a head of keys and values with all of the queries that
share it (grouped-query attention), as these have their labels in common.
"""

from __future__ import annotations

from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from bayesbits.graph.activation_products import SOFTMAX, form_of
from bayesbits.graph.channel_labels import ChannelClasses, Labels, collapse, compact, one
from bayesbits.graph.exported_program import arguments, operation, shape
from bayesbits.utils.activation_products import ATTENTION, OPERATIONS, AttentionForm, EinsumForm, run_einsum

STACKED = 3
"""The number of axes of a stack of matrices, at least."""


class Slices(NamedTuple):
    """What a product of stacks of matrices passes on."""

    labels: Tensor
    """The labels of the result."""
    atoms: Tensor
    """An atom of every slice."""


class _NoSlicesError(Exception):
    """The operands of a product are no stacks of matrices, or hold other things than blocks of channels."""


def pass_heads(node: fx.Node, labels: dict[fx.Node, Labels], classes: ChannelClasses) -> Slices | Tensor | None:
    """The labels of a product or a softmax of heads; None where a node is neither, or where channels end there."""
    name = operation(node)
    if name in SOFTMAX:
        return _softmax(node, one(labels[node.all_input_nodes[0]]), classes)
    if name not in OPERATIONS:
        return None
    try:
        found = _product(node, labels, classes)
    except _NoSlicesError:
        return None
    return Slices(compact(found.labels.expand(shape(node))), found.atoms)


def _softmax(node: fx.Node, before: Tensor, classes: ChannelClasses) -> Tensor | None:
    """A softmax within slices; None where it is one of channels, or across slices."""
    small = collapse(before)
    dim: Any = arguments(node)["dim"]
    return before if small.dim() and small.shape[dim] == 1 and bool(classes.dependent(small).all()) else None


def _product(node: fx.Node, labels: dict[fx.Node, Labels], classes: ChannelClasses) -> Slices:
    """The labels of a node that multiplies; attention is two products."""
    name, form, args = operation(node), form_of(node), node.args
    given: Any = args[1] if name == "einsum" else args
    tensors = [one(labels[used]) for used in given if isinstance(used, fx.Node)]
    added = [one(labels[used]) for used in masks_of(node)]
    if any(bool((labels >= 0).any()) for labels in added):
        raise _NoSlicesError
    if isinstance(form, AttentionForm):
        query, key, value = tensors[:3]
        if form.repeats > 1:
            key, value = (compact(part.repeat_interleave(form.repeats, -3)) for part in (key, value))
        scores = _multiply(query, key.transpose(-2, -1), classes)
        return Slices(_multiply(scores.labels, value, classes).labels, scores.atoms)
    if isinstance(form, EinsumForm):
        found: list[Slices] = []

        def multiply(left: Tensor, right: Tensor) -> Tensor:
            found.append(_multiply(left, right, classes))
            return found[0].labels

        return Slices(run_einsum(lambda move, *to: move(*to), multiply, form, *tensors), found[0].atoms)
    if name == "einsum":
        raise _NoSlicesError
    return _multiply(tensors[-2], tensors[-1], classes)


def masks_of(node: fx.Node) -> tuple[fx.Node, ...]:
    """The tensors that a product adds to what it multiplies, or masks that with."""
    given = {"baddbmm": ("self",), ATTENTION: ("attn_mask",)}.get(operation(node), ())
    return tuple(used for name in given if isinstance(used := arguments(node)[name], fx.Node))


def _multiply(left: Tensor, right: Tensor, classes: ChannelClasses) -> Slices:
    """The labels of a product of two stacks of matrices."""
    if max(left.dim(), right.dim()) < STACKED:
        raise _NoSlicesError
    rows, columns = left.shape[-2], right.shape[-1]
    left, right = collapse(left), collapse(right)
    backwards = zip_longest(left.shape[-3::-1], right.shape[-3::-1], fillvalue=1)
    stack = [max(sizes) for sizes in backwards][::-1]
    size = prod(stack)
    parts = [part.expand(*stack, *part.shape[-2:]).reshape(size, *part.shape[-2:]) for part in (left, right)]
    if size == 1 or any(bool((part < 0).any()) for part in parts):
        raise _NoSlicesError
    dependent = [bool(classes.dependent(part).all()) and part.shape[1:] == (1, 1) for part in parts]
    holds = [not bool(classes.dependent(part).any()) for part in parts]
    members = [part.reshape(size, -1) for part in parts]
    if dependent[0] and holds[1] and parts[1].shape[1] == 1:
        made = parts[1]
    elif dependent[1] and holds[0] and parts[0].shape[2] == 1:
        made = parts[0]
    else:
        made = classes.new(size, dependent=True).reshape(size, 1, 1)
        members.append(made.reshape(size, 1))
    block = torch.cat(members, dim=1)
    classes.unite_blocks(block)
    return Slices(made.reshape(*stack, *made.shape[-2:]).expand(*stack, rows, columns), block[:, 0])
