"""Every function is the same as the matrix products that stand for it."""

import pytest
import torch
import torch.nn.functional as F

from bayesbits.utils.activation_products import (
    attention_form,
    einsum_form,
    run_attention,
    run_baddbmm,
    run_einsum,
)


def run(operation, *args, **kwargs):
    return operation(*args, **kwargs)


def normal(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize(
    "equation",
    ["bhid,bhjd->bhij", "bhij,bhjd->bihd", "bqhd,bkhd->bhqk", "ij,jk->ki", "bi,bi->b", "bi,bij->bj", "bij,bj->bi"],
)
def test_an_einsum_is_one_matrix_product(equation):
    sizes = {label: size for size, label in enumerate("bhidjkq", start=2)}
    left, right = (normal(*(sizes[label] for label in term)) for term in equation.split("->")[0].split(","))
    form = einsum_form(equation, (left.dim(), right.dim()))
    products = []

    def product(one, other):
        products.append((one, other))
        return one @ other

    found = run_einsum(run, product, form, left, right)
    torch.testing.assert_close(found, torch.einsum(equation, left, right))
    assert len(products) == 1


@pytest.mark.parametrize(
    ("equation", "ranks"),
    [
        ("ij,jk", (2, 2)),  # without its result
        ("...ij,...jk->...ik", (3, 3)),
        ("ii,ij->ij", (2, 2)),  # a diagonal
        ("ij,kl->ijkl", (2, 2)),  # nothing is summed
        ("ijk,ijk->i", (3, 3)),  # two axes are summed
        ("ij,jk->k", (2, 2)),  # an axis of one operand is summed
        ("ij,jk,kl->il", (2, 2, 2)),
        ("abij,jk->iabk", (4, 2)),  # several axes of rows
    ],
)
def test_an_einsum_of_another_form_is_none(equation, ranks):
    assert einsum_form(equation, ranks) is None


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (2.0, 0.5), (0, 3.0)])
def test_baddbmm_adds_to_the_product(beta, alpha):
    added, left, right = normal(2, 3, 4), normal(2, 3, 5), normal(2, 5, 4)
    found = run_baddbmm(run, torch.matmul, added, left, right, beta, alpha)
    torch.testing.assert_close(found, torch.baddbmm(added, left, right, beta=beta, alpha=alpha))


BOOLEAN = torch.tensor([[True, False, True, True], [False, False, False, False], [True, True, True, True]])
MASKS = {
    "none": {},
    "scaled": {"scale": 0.3},
    "causal": {"is_causal": True},
    "boolean, with a row that reads nothing": {"attn_mask": BOOLEAN},
    "added": {"attn_mask": torch.linspace(-3, 0, 12, dtype=torch.float64).reshape(3, 4)},
    "added, with a row that reads nothing": {"attn_mask": torch.where(BOOLEAN, 0.5, -torch.inf).double()},
}


@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS)
def test_attention_is_two_matrix_products(options):
    query, key, value = (normal(2, 3, size, 6).requires_grad_() for size in (3, 4, 4))
    form = attention_form(query, key, value, **options)
    found = run_attention(run, torch.matmul, torch.matmul, form, query, key, value, options.get("attn_mask"))
    torch.testing.assert_close(found, F.scaled_dot_product_attention(query, key, value, **options))
    found.sum().backward()
    assert all(part.grad.isfinite().all() for part in (query, key, value))


def test_heads_of_keys_are_shared_by_heads_of_queries():
    query, key, value = normal(2, 4, 3, 6), normal(2, 2, 5, 6), normal(2, 2, 5, 6)
    form = attention_form(query, key, value, enable_gqa=True)
    found = run_attention(run, torch.matmul, torch.matmul, form, query, key, value, None)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(query, key, value, enable_gqa=True))


def test_dropout_is_applied_to_the_probabilities():
    query = normal(1, 2, 3, 4)
    form = attention_form(query, query, query, dropout_p=0.5)
    seen = []

    def context(probabilities, value):
        seen.append(probabilities)
        return probabilities @ value

    torch.manual_seed(0)
    run_attention(run, torch.matmul, context, form, query, query, query, None)
    assert 0 < int((seen[0] == 0).sum()) < seen[0].numel()
