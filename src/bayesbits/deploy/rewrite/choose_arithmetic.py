"""Which layers compute in integers, and why the others compute in float."""

from __future__ import annotations

from collections.abc import Mapping

from bayesbits.deploy.layer_weights import LayerWeights
from bayesbits.deploy.rewrite.program import RewrittenProgram
from bayesbits.functional.grid import INTEGER_BITS
from bayesbits.records.integer_network import Grid
from bayesbits.records.plan import FLOAT_BITS
from bayesbits.records.topology import Layer, Product

LARGEST_BIAS = 2**31 - 1


def choose_arithmetic(program: RewrittenProgram) -> None:
    """Let every layer compute in integers that can; write down the reason for those that cannot."""
    decision = program.decision
    for entry in program.layers:
        entry.dynamic = entry.layer.name in decision.dynamic
        weights = decision.weights[entry.layer.name]
        entry.float_reason = float_reason(entry.layer, weights, decision.grids, dynamic=entry.dynamic)
    for one in program.products:
        one.float_reason = product_float_reason(one.product, decision.grids)


def float_reason(
    layer: Layer, weights: LayerWeights, grids: Mapping[str, Grid], *, dynamic: bool = False
) -> str | None:
    """Why a layer cannot compute in integers; None where it can. `dynamic`: its input has 8 bits at run time."""
    grid = grids.get(layer.activation)
    if weights.codes is None or weights.bits > INTEGER_BITS:
        return f"its weight has {weights.bits} bits"
    if dynamic:  # the bias is added in float
        return None
    if grid is None or grid.bits > INTEGER_BITS:
        return f"its input has {FLOAT_BITS if grid is None else grid.bits} bits"
    if weights.bias is not None and bool((weights.bias_codes(grid).abs() > LARGEST_BIAS).any()):
        return "its bias does not fit into 32 bits at the step of its input and weight"
    return None


def product_float_reason(product: Product, grids: Mapping[str, Grid]) -> str | None:
    """Why a product of two activations cannot compute in integers; None where it can."""
    for side, name in (("first", product.left), ("second", product.right)):
        grid = grids.get(name)
        if grid is None or grid.bits > INTEGER_BITS:
            return f"its {side} operand has {FLOAT_BITS if grid is None else grid.bits} bits"
    return None
