"""Products of two activations become module calls, and what is more than a product is written out around them.

The operations around a product are those that the attached network runs (see `utils.activation_products`): attention
becomes product, scale, mask, softmax, product. Where no operand of a call is quantized, its node stays as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from bayesbits.deploy.modules import PRODUCTS, target_of
from bayesbits.deploy.rewrite.program import ProductNode, RewrittenProgram
from bayesbits.graph.activation_products import FoundProduct, form_of
from bayesbits.graph.exported_program import arguments, operation
from bayesbits.utils.activation_products import (
    AttentionForm,
    EinsumForm,
    run_attention,
    run_baddbmm,
    run_einsum,
)

aten = torch.ops.aten


def expose_products(program: RewrittenProgram) -> None:
    """Put the call of a module in place of every product with a quantized operand."""
    calls: dict[fx.Node, list[FoundProduct]] = {}
    for found in program.reading.products:
        for twin in found.nodes:
            calls.setdefault(twin, []).append(found)
    present, grids = set(program.graph.nodes), program.decision.grids
    entries = {product.name: ProductNode(product) for product in program.reading.topology.products}
    for twin, products in calls.items():
        node = program.node_of[twin]
        if node not in present or not any(name in grids for found in products for name in (found.left, found.right)):
            continue
        writing = _Writing(program.graph, node, [entries[found.name] for found in products])
        result = writing.write(twin)
        node.replace_all_uses_with(result)
        program.node_of[twin] = result
        program.graph.erase_node(node)
    program.products += [entry for entry in entries.values() if entry.calls]


class _Writing:
    """Writes the operations of one call in front of its node."""

    def __init__(self, graph: fx.Graph, node: fx.Node, entries: list[ProductNode]) -> None:
        self.graph, self.node, self.entries = graph, node, entries

    def write(self, twin: fx.Node) -> fx.Node:
        """The node with the result of the call; `twin` has the sizes of the example inputs."""
        products, name, form = [self._product(entry) for entry in self.entries], operation(self.node), form_of(twin)
        args: Any = self.node.args
        if isinstance(form, AttentionForm):
            given = arguments(self.node)
            tensors = [given[name] for name in ("query", "key", "value", "attn_mask")]
            result = run_attention(self._call, products[0], products[1], form, *tensors)
        elif isinstance(form, EinsumForm):
            result = run_einsum(self._call, products[0], form, *args[1])
        elif name == "baddbmm":
            given = arguments(self.node)
            result = run_baddbmm(self._call, products[0], args[0], args[1], args[2], given["beta"], given["alpha"])
        else:
            result = products[0](*args[:2])
        assert isinstance(result, fx.Node)
        return result

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        with self.graph.inserting_before(self.node):
            made = self.graph.call_function(target, args, kwargs)
        made.meta["nn_module_stack"] = self.node.meta.get("nn_module_stack")
        return made

    def _product(self, entry: ProductNode) -> Any:
        def multiply(left: Any, right: Any) -> fx.Node:
            with self.graph.inserting_before(self.node):
                call = self.graph.call_module(target_of(PRODUCTS, entry.product.name), (left, right))
            call.meta["nn_module_stack"] = self.node.meta.get("nn_module_stack")
            entry.calls.append(call)
            return call

        return multiply
