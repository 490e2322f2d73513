"""Finding the products of two computed tensors: those of attention, and every other matrix product without a weight.

Both operands have to depend on what the network computes with: a product with a parameter is a layer, and masks, which
are made of token ids and constants alone, are left as they are. Scaled dot-product attention is two products.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import fx

from bayesbits.graph.channel_rules import MOVES, SAME
from bayesbits.graph.exported_program import Program, arguments, is_float, operation, shape
from bayesbits.graph.layers import FoundLayer, unique_name
from bayesbits.graph.tables import FoundTable
from bayesbits.records.topology import Unsupported
from bayesbits.utils.activation_products import (
    ATTENTION,
    OPERATIONS,
    PLAIN,
    ActivationProductCall,
    AttentionForm,
    EinsumForm,
    attention_form,
    einsum_form,
)

SOFTMAX = ("softmax", "_softmax", "_safe_softmax")


@dataclass(frozen=True)
class FoundProduct:
    """A product, and the nodes that run it."""

    name: str
    operation: str
    owner: str
    """The path of the innermost module whose code computes it."""
    call: ActivationProductCall
    left: str
    """The name of the first operand."""
    right: str
    nodes: tuple[fx.Node, ...]
    macs: int
    known_ranges: Mapping[str, float]
    """The operands whose range is known, such as the output of softmax, and its end."""


def find_activation_products(
    program: Program,
    layers: Sequence[FoundLayer],
    tables: Sequence[FoundTable],
    unsupported: Mapping[fx.Node, Unsupported],
) -> tuple[FoundProduct, ...]:
    """The products of two activations, in running order."""
    lookups = {call for entry in tables for call in entry.calls}
    computed = _computed(program, {call for layer in layers for call in layer.calls}, lookups | set(unsupported))
    found = [node for node in program.nodes if node in unsupported and _is_product(node, computed)]
    numbers = _numbered(program, set(found))
    calls: dict[tuple[str, ActivationProductCall], list[fx.Node]] = {}
    for node in found:
        calls.setdefault((program.path(node), numbers[node]), []).append(node)
    taken: set[str] = set()
    products: list[FoundProduct] = []
    for (owner, call), nodes in calls.items():
        if call.operation == ATTENTION and len({form_of(node) for node in nodes}) > 1:
            continue  # the calls of one module differ in more than their tensors
        products += _products(owner, call, tuple(nodes), [unsupported[node].macs for node in nodes], taken)
    return tuple(products)


def operand_nodes(node: fx.Node) -> tuple[fx.Node, fx.Node]:
    """The two tensors that a product multiplies; of attention the queries and the keys."""
    given: Any = node.args
    if operation(node) == "einsum":
        left, right = given[1]
    else:
        first = 1 if operation(node) == "baddbmm" else 0
        left, right = given[first : first + 2]
    assert isinstance(left, fx.Node)
    assert isinstance(right, fx.Node)
    return left, right


def read_nodes(node: fx.Node) -> tuple[fx.Node, ...]:
    """All tensors that the products of a node multiply, as far as other nodes compute them."""
    others = [used for used in node.args[2:3] if operation(node) == ATTENTION and isinstance(used, fx.Node)]
    return (*operand_nodes(node), *others)


def sources_of(
    products: Sequence[FoundProduct], layers: Sequence[FoundLayer], tables: Sequence[FoundTable]
) -> dict[str, tuple[str, ...]]:
    """For each product what its operands are computed from: the layers, tables and products next in front of it."""
    ends = {call: layer.name for layer in layers for call in layer.calls}
    ends |= {call: entry.table.name for entry in tables for call in entry.calls}
    ends |= {node: product.name for product in products for node in product.nodes}
    found = {}
    for product in products:
        second = product.call.operation == ATTENTION and product.name.endswith(".context")
        names: list[str] = [product.name.removesuffix("context") + "scores"] if second else []
        waiting: list[fx.Node] = []
        for node in product.nodes:
            waiting += node.all_input_nodes[2:] if second else operand_nodes(node)
        seen: set[fx.Node] = set()
        while waiting:
            node = waiting.pop()
            if node in ends:
                names.append(ends[node])
            elif node not in seen:
                seen.add(node)
                waiting += node.all_input_nodes
        found[product.name] = tuple(dict.fromkeys(name for name in names if name != product.name))
    return found


def form_of(node: fx.Node) -> AttentionForm | EinsumForm | None:
    """The form of an einsum or an attention; None for other products, and for forms that are no matrix product."""
    if operation(node) == "einsum":
        args: Any = node.args
        return einsum_form(str(args[0]), tuple(len(shape(used)) for used in args[1]))
    if operation(node) == ATTENTION:
        given = arguments(node)
        values = {name: used.meta["val"] if isinstance(used, fx.Node) else used for name, used in given.items()}
        return attention_form(**values)
    return None


def _is_product(node: fx.Node, computed: Collection[fx.Node]) -> bool:
    """Whether a node multiplies tensors that the network computes, in a form that is handled."""
    name = operation(node)
    if name not in OPERATIONS or (name in PLAIN and (len(node.args) != 2 or node.kwargs)):
        return False
    if name == "einsum" and (form_of(node) is None or node.args[2:] not in ((), (None,))):
        return False
    if name == ATTENTION:
        form = form_of(node)
        if not isinstance(form, AttentionForm) or form.dropout > 0:
            return False
    return all(
        isinstance(used, fx.Node) and is_float(used) and used in computed and len(shape(used)) > 1
        for used in read_nodes(node)
    )


def _computed(program: Program, layers: Collection[fx.Node], others: Collection[fx.Node]) -> set[fx.Node]:
    """The tensors that depend on a float input of the network, on a layer, or on an embedding of any input.

    Layers count whatever they read: queries and relative positions may be computed from parameters alone.
    """
    given: set[fx.Node] = set(program.inputs)
    computed: set[fx.Node] = {node for node in program.inputs if is_float(node)}
    for node in program.nodes:
        reads = node.all_input_nodes
        if given.intersection(reads):
            given.add(node)
        if node in layers or (node in others and node in given) or computed.intersection(reads):
            computed.add(node)
    return computed


def _numbered(program: Program, found: Collection[fx.Node]) -> dict[fx.Node, ActivationProductCall]:
    """Every call of one of the functions, numbered within the call of the innermost module.

    Modules around that one see its calls too, but for those that are found and are more than a matrix product: what is
    attached runs these as other operations.
    """
    counts: dict[tuple[str, str], int] = {}
    numbers = {}
    for node in program.nodes:
        if node.op != "call_function" or operation(node) not in OPERATIONS:
            continue
        keys = [key for key, _ in program.calls(node)] or [""]
        hidden = node in found and operation(node) not in PLAIN
        for key in keys[-1:] if hidden else keys:
            place = (key, operation(node))
            number = counts.get(place, 0)
            counts[place] = number + 1
        numbers[node] = ActivationProductCall(operation(node), number)
    return numbers


def _products(
    owner: str, call: ActivationProductCall, nodes: tuple[fx.Node, ...], macs: list[int], taken: set[str]
) -> list[FoundProduct]:
    """The products of one call: two for attention."""
    what = "sdpa" if call.operation == ATTENTION else call.operation
    name = unique_name(".".join(part for part in (owner, what) if part), taken, mark="_")
    operands = [operand_nodes(node) for node in nodes]
    if call.operation != ATTENTION:
        sides = (f"{name}.left", f"{name}.right")
        known = {side: 1.0 for index, side in enumerate(sides) if all(_is_softmax(both[index]) for both in operands)}
        return [FoundProduct(name, call.operation, owner, call, *sides, nodes, sum(macs), known)]
    scores = sum(prod(shape(query)) * shape(key)[-2] for query, key in operands)
    parts = (("scores", "query", "key", scores), ("context", "probabilities", "value", sum(macs) - scores))
    return [
        FoundProduct(
            f"{name}.{what}", call.operation, owner, call, f"{name}.{left}", f"{name}.{right}", nodes, own,
            {f"{name}.{left}": 1.0} if what == "context" else {},
        )
        for what, left, right, own in parts
    ]  # fmt: skip


def _is_softmax(node: fx.Node) -> bool:
    """Whether a tensor holds the output of softmax, moved or copied."""
    while operation(node) in (*MOVES, *SAME) and len(node.all_input_nodes) == 1 and is_float(node.all_input_nodes[0]):
        node = node.all_input_nodes[0]
    return node.op == "call_function" and operation(node) in SOFTMAX
