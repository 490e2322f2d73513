"""Finding hard-swish, x * clip(x + 3, 0, 6) / 6, in the forms in which networks write it.

They are `hardswish`, the product of x and `hardsigmoid`, and the formula, which may divide the clipped sum or the
product by 6.
"""

from __future__ import annotations

from torch import fx

from bayesbits.graph.exported_program import operation
from bayesbits.graph.operations import CLIPS, clip_bounds

SHIFT, HEIGHT = 3.0, 6.0
"""The numbers of the hard sigmoid; below -SHIFT a hard-swish is zero."""


def only_hard_swish_reads(x: fx.Node) -> bool:
    """Whether a hard-swish reads a tensor, and nothing else does."""
    return hard_swish_of(x) is not None


def hard_swish_of(x: fx.Node) -> fx.Node | None:
    """The hard-swish of a tensor that nothing else reads; None where there is none, or another reader."""
    readers = list(x.users)
    if len(readers) == 1:
        return readers[0] if operation(readers[0]) == "hardswish" else None
    products = [reader for reader in readers if operation(reader) == "mul"]
    gates = [reader for reader in readers if operation(reader) in ("add", "hardsigmoid")]
    if len(readers) != 2 or len(products) != 1 or len(gates) != 1:
        return None
    product, gate = products[0], gates[0]
    if operation(gate) == "hardsigmoid":
        return product if _multiplies(product, x, gate) else None
    clip = _only_reader(gate)
    if gate.args[1:] != (SHIFT,) or gate.kwargs or clip is None:
        return None
    if operation(clip) not in CLIPS or clip_bounds(clip) != (0.0, HEIGHT):
        return None
    if _multiplies(product, x, clip):
        divided = _only_reader(product)
        return divided if _divides(divided) else None
    return product if _divides(divided := _only_reader(clip)) and _multiplies(product, x, divided) else None


def is_sigmoid(node: fx.Node) -> bool:
    """Whether a node is a sigmoid or a hard sigmoid, as a function or as a formula: a number between 0 and 1."""
    if operation(node) in ("sigmoid", "hardsigmoid"):
        return True
    clip = node.all_input_nodes[0] if _divides(node) else None
    return clip is not None and operation(clip) in CLIPS and clip_bounds(clip) == (0.0, HEIGHT)


def _multiplies(product: fx.Node, x: fx.Node, gate: fx.Node | None) -> bool:
    """Whether a product is the one of x and a gate that nothing else reads."""
    return gate is not None and set(product.all_input_nodes) == {x, gate} and len(gate.users) == 1


def _divides(node: fx.Node | None) -> bool:
    return node is not None and operation(node) == "div" and node.args[1:] == (HEIGHT,) and not node.kwargs


def _only_reader(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None
