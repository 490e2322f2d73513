"""The attached product of two activations: a matrix product that a module's own code computes, on quantized operands.

The module's class is exchanged as for other products (see `nn.weight_product`), and a call that is attached to is
computed here instead. A function that does more than multiply is computed as matrix products with plain operations
around them (see `utils.activation_products`), so that each operand can be quantized where it is multiplied:

    forward:   scaled_dot_product_attention(q, k, v, mask)
    attached:  Q(softmax(scale * (Q(q) @ Q(k^T)) + mask)) @ Q(v)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.nn.calibration_state import CalibrationState
from bayesbits.nn.layer import autocast_dtype
from bayesbits.nn.quantizer import Quantizer
from bayesbits.utils.activation_products import (
    ATTENTION,
    FUNCTIONS,
    PLAIN,
    attention_form,
    einsum_form,
    run_attention,
    run_baddbmm,
    run_einsum,
)

aten = torch.ops.aten

_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
BATCH_HEADS_POSITIONS_FEATURES = 4
"""The number of axes that attention mostly has."""
_ADDED = ("input", "batch1", "batch2")


@dataclass
class OperandQuantizers:
    """What is attached to a product; an operand that stays in float has no quantizer."""

    left: Quantizer | None = None
    """Quantizes the first operand."""
    right: Quantizer | None = None
    """Quantizes the second operand."""
    calibration: CalibrationState = field(default_factory=lambda: CalibrationState(known=True))
    """Shared by all that is attached to the network."""


class ActivationProduct(nn.Module):
    """A product with its quantizers. It is called where the product is, but no module of the network."""

    def __init__(self, name: str, parts: OperandQuantizers) -> None:
        super().__init__()
        self.name, self.parts = name, parts
        self.constant: float | None = None
        """What it returns everywhere in the place of the product, if anything."""

    def forward(self, left: Tensor, right: Tensor, function: Any = aten.matmul.default) -> Tensor:
        """The product of two tensors, each on its grid."""
        parts = self.parts
        parts.calibration.check()
        if parts.left is not None:
            left = parts.left(left, dtype=autocast_dtype(left))
        if parts.right is not None:
            right = parts.right(right, dtype=autocast_dtype(right))
        result: Tensor = function(left, right)
        return result if self.constant is None else torch.full_like(result, self.constant)

    @property
    def is_quantized(self) -> bool:
        """Whether an operand has a quantizer."""
        return self.parts.left is not None or self.parts.right is not None


def run_attached(
    products: tuple[ActivationProduct, ...], function: Any, args: Any, kwargs: Mapping[str, Any]
) -> Tensor:
    """The result of a call of one of the `FUNCTIONS`, by the products that are attached to it: two for attention.

    What is more than a matrix product runs as operations of torch that are none of the `FUNCTIONS`: modules around this
    one that count the calls of those see none of them, quantized or not.
    """
    operation, result = FUNCTIONS[function], None
    if operation in PLAIN:
        operands = [*args, *kwargs.values()]
        result = products[0](operands[0], operands[1], function)
    elif operation == "einsum":
        result = _einsum(products[0], args)
    elif operation == "baddbmm":
        result = _baddbmm(products[0], {**dict(zip(_ADDED, args, strict=False)), **kwargs})
    elif operation == ATTENTION:
        result = _attention(products, {**dict(zip(_ATTENTION, args, strict=False)), **kwargs})
    assert isinstance(result, Tensor)
    return result


def _einsum(product: ActivationProduct, args: Any) -> Any:
    equation, tensors = args[0], args[1] if isinstance(args[1], list | tuple) else args[1:]
    form = einsum_form(equation, tuple(tensor.dim() for tensor in tensors))
    if form is None or not product.is_quantized:
        return aten.einsum.default(equation, list(tensors))
    return run_einsum(_run, product, form, *tensors)


def _baddbmm(product: ActivationProduct, given: dict[str, Any]) -> Any:
    added, left, right = (given[name] for name in _ADDED)
    beta, alpha = given.get("beta", 1), given.get("alpha", 1)
    if not product.is_quantized:
        return aten.baddbmm.default(added, left, right, beta=beta, alpha=alpha)
    return run_baddbmm(_run, product, added, left, right, beta, alpha)


def _attention(products: tuple[ActivationProduct, ...], given: dict[str, Any]) -> Any:
    scores, context = products
    if not scores.is_quantized and not context.is_quantized:
        return aten.scaled_dot_product_attention.default(**given)
    query, key, value, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
    result = run_attention(_run, scores, context, attention_form(**given), query, key, value, mask)
    if result.dim() != BATCH_HEADS_POSITIONS_FEATURES:
        return result
    # In memory the heads come behind the positions, as torch leaves them: code may view both as one axis.
    return result.transpose(1, 2).contiguous().transpose(1, 2)


def _run(operation: Any, *args: Any, **kwargs: Any) -> Any:
    return operation(*args, **kwargs)
