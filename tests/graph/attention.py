"""Tiny networks with products of two activations, each function in its usual form."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

POSITIONS, WIDTH, HEADS = 5, 8, 2
KINDS = ("sdpa", "causal", "mask", "added", "matmul", "bmm", "einsum", "baddbmm")


class Attention(nn.Module):
    """Self-attention between two layers, written with one of the functions that multiply two activations."""

    def __init__(self, kind: str = "sdpa") -> None:
        super().__init__()
        self.kind = kind
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        shared = self.qkv(x).reshape(batch, POSITIONS, 3, HEADS, WIDTH // HEADS)
        query, key, value = shared.permute(2, 0, 3, 1, 4).unbind(0)
        attended = getattr(self, f"_{self.kind}")(query, key, value, x)
        return self.proj(attended.transpose(1, 2).reshape(batch, POSITIONS, WIDTH))

    def _sdpa(self, query, key, value, x):
        return F.scaled_dot_product_attention(query, key, value)

    def _causal(self, query, key, value, x):
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.3)

    def _mask(self, query, key, value, x):  # the last row of keys is read by no query of the first example
        allowed = (torch.arange(POSITIONS) < 3)[None, None, None].expand(x.shape[0], 1, POSITIONS, POSITIONS)
        blocked = torch.arange(POSITIONS)[None, None, :, None] == 4
        return F.scaled_dot_product_attention(query, key, value, attn_mask=allowed & ~blocked)

    def _added(self, query, key, value, x):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=torch.linspace(-2, 0, POSITIONS).expand(1, POSITIONS)
        )

    def _matmul(self, query, key, value, x):
        return (query @ key.transpose(-2, -1) * 0.5).softmax(-1).matmul(value)

    def _bmm(self, query, key, value, x):
        rows = [part.flatten(0, 1) for part in (query, key, value)]
        scores = torch.bmm(rows[0], rows[1].transpose(1, 2)) * 0.5
        return scores.softmax(-1).bmm(rows[2]).unflatten(0, (-1, HEADS))

    def _einsum(self, query, key, value, x):
        scores = torch.einsum("bhid,bhjd->bhij", query, key) * 0.5
        return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), value)

    def _baddbmm(self, query, key, value, x):
        rows = [part.flatten(0, 1) for part in (query, key, value)]
        bias = torch.linspace(-1, 1, POSITIONS).expand(rows[0].shape[0], POSITIONS, POSITIONS)
        scores = torch.baddbmm(bias, rows[0], rows[1].transpose(1, 2), beta=2.0, alpha=0.5)
        return scores.softmax(-1).bmm(rows[2]).unflatten(0, (-1, HEADS))


def examples(batch: int = 3) -> Tensor:
    """Inputs of the networks above."""
    return torch.randn(batch, POSITIONS, WIDTH, generator=torch.Generator().manual_seed(0))


def attention(kind: str = "sdpa") -> Attention:
    """A network in evaluation mode; equal kinds have equal weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Attention(kind).eval()
