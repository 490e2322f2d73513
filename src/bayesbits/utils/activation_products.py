"""The functions of torch that multiply two computed tensors, and each of them as products of two matrices.

Reading a network finds their calls in its graph, and attaching finds the same calls again while the network runs: the
n-th call of a function inside a call of a module. A function that does more than multiply is written as matrix products
with other operations around them, once for both: `Call` runs an operation on tensors, or adds it to a graph.

    matmul, bmm, mm               left @ right
    baddbmm                       beta * input + alpha * (left @ right)
    einsum                        permute(permute(left) @ permute(right))
    scaled_dot_product_attention  softmax(scale * (query @ key^T) + mask) @ value
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten

PLAIN = ("matmul", "bmm", "mm")
"""The functions that multiply two matrices, or stacks of them, and do nothing else."""
ATTENTION = "scaled_dot_product_attention"
OPERATIONS = (*PLAIN, "baddbmm", "einsum", ATTENTION)
FUNCTIONS: Mapping[Any, str] = {
    **{getattr(owner, name): name for owner in (torch, Tensor) for name in (*PLAIN, "baddbmm")},
    Tensor.__matmul__: "matmul",
    torch.einsum: "einsum",
    F.scaled_dot_product_attention: ATTENTION,
}

Call = Callable[..., Any]
"""Runs an operation of torch with its arguments: at once, or as a node of a graph."""


class ActivationProductCall(NamedTuple):
    """A call of one of these functions inside a call of a module."""

    operation: str
    """The name of the function."""
    number: int
    """How many calls of this function came before."""


@dataclass(frozen=True)
class EinsumForm:
    """The axes of an einsum of two tensors as one matrix product: [batch axes, rows, sum] @ [batch axes, sum, columns].

    The axes of an operand or of the result are permuted by these; a tensor without rows or columns gets an axis of 1.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    result: tuple[int, ...]
    has_rows: bool
    has_columns: bool


def einsum_form(equation: str, ranks: tuple[int, ...]) -> EinsumForm | None:
    """An einsum as a matrix product; None where it has another form, or is written with "..."."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if not arrow or len(terms) != 2 or len(ranks) != 2 or "." in equation:
        return None
    left, right = terms
    if any(len(set(term)) != len(term) for term in (left, right, output)) or (len(left), len(right)) != ranks:
        return None
    batch = [label for label in output if label in left and label in right]
    rows, columns = ([label for label in output if label in own and label not in batch] for own in (left, right))
    summed = [label for label in left if label in right and label not in output]
    used = {*batch, *summed, *rows, *columns}
    if len(summed) != 1 or len(rows) > 1 or len(columns) > 1 or used != {*left, *right} or not used.issuperset(output):
        return None
    made = [*batch, *rows, *columns]
    return EinsumForm(
        left=tuple(left.index(label) for label in (*batch, *rows, *summed)),
        right=tuple(right.index(label) for label in (*batch, *summed, *columns)),
        result=tuple(made.index(label) for label in output),
        has_rows=bool(rows),
        has_columns=bool(columns),
    )


def run_einsum(call: Call, product: Call, form: EinsumForm, left: Any, right: Any) -> Any:
    """An einsum by one matrix product; `product(left, right)` is that."""
    left, right = call(aten.permute.default, left, list(form.left)), call(aten.permute.default, right, list(form.right))
    left = left if form.has_rows else call(aten.unsqueeze.default, left, -2)
    right = right if form.has_columns else call(aten.unsqueeze.default, right, -1)
    result = product(left, right)
    result = result if form.has_columns else call(aten.squeeze.dim, result, -1)
    result = result if form.has_rows else call(aten.squeeze.dim, result, -2 if form.has_columns else -1)
    return call(aten.permute.default, result, list(form.result))


def run_baddbmm(call: Call, product: Call, added: Any, left: Any, right: Any, beta: float, alpha: float) -> Any:
    """A product with a tensor that is added to it."""
    result = product(left, right)
    result = result if alpha == 1 else call(aten.mul.Scalar, result, alpha)
    if beta == 0:
        return result
    return call(aten.add.Tensor, result, added if beta == 1 else call(aten.mul.Scalar, added, beta))


@dataclass(frozen=True)
class AttentionForm:
    """What is known of a call of scaled dot-product attention beside its tensors."""

    scale: float
    """The factor of the scores."""
    is_causal: bool
    dropout: float
    repeats: int
    """How many heads of the queries share a head of the keys and values."""
    rank: int
    """The number of axes of the scores."""
    mask_is_boolean: bool | None
    """Whether the mask says which keys are read, and is not added to the scores; None without a mask."""


def attention_form(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionForm:
    """The form of a call with these arguments, which are torch's; of the tensors only shapes and dtypes are read."""
    return AttentionForm(
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        is_causal=is_causal,
        dropout=dropout_p,
        repeats=query.shape[-3] // key.shape[-3] if enable_gqa else 1,
        rank=max(query.dim(), key.dim()),
        mask_is_boolean=None if attn_mask is None else attn_mask.dtype == torch.bool,
    )


def run_attention(
    call: Call, scores: Call, context: Call, form: AttentionForm, query: Any, key: Any, value: Any, mask: Any
) -> Any:
    """Attention by two matrix products: `scores(query, key^T)` and `context(probabilities, value)`.

    A row of scores without any key to read gives zeros, as in torch.
    """
    if form.repeats > 1:
        key, value = (call(aten.repeat_interleave.self_int, own, form.repeats, -3) for own in (key, value))
    logits = scores(query, call(aten.transpose.int, key, -2, -1))
    logits = call(aten.mul.Scalar, logits, form.scale)
    if form.is_causal:
        one = logits
        for _ in range(form.rank - 2):
            one = call(aten.select.int, one, 0, 0)
        above = call(aten.triu.default, call(aten.ones_like.default, one, dtype=torch.bool), 1)
        logits = call(aten.masked_fill.Scalar, logits, above, float("-inf"))
    if form.mask_is_boolean is not None:
        if form.mask_is_boolean:
            logits = call(aten.masked_fill.Scalar, logits, call(aten.logical_not.default, mask), float("-inf"))
        else:
            logits = call(aten.add.Tensor, logits, mask)
        blocked = call(aten.all.dim, call(aten.eq.Scalar, logits, float("-inf")), -1, True)
        logits = call(aten.masked_fill.Scalar, logits, blocked, 0.0)  # softmax of nothing but -inf is NaN
    probabilities = call(aten.softmax.int, logits, -1)
    if form.mask_is_boolean is not None:
        probabilities = call(aten.masked_fill.Scalar, probabilities, blocked, 0.0)
    if form.dropout > 0:
        probabilities = call(aten.dropout.default, probabilities, form.dropout, True)
    return context(probabilities, value)
