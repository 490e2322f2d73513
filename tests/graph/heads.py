"""Attention between two layers, with layers of their own for queries, keys and values, written in several ways."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

POSITIONS, WIDTH = 5, 6
FORMS = ("sdpa", "shared", "matmul", "merged", "einsum")


class Heads(nn.Module):
    """Attention of `heads` heads of `size` channels.

    `keys` are the heads of keys and values, fewer than those of the queries in grouped-query attention. `rotary`
    multiplies queries and keys by cosines and sines; `biased` adds a tensor with a matrix for each head to the scores.
    """

    def __init__(
        self, form: str = "matmul", heads: int = 4, size: int = 4, keys: int = 4, *, rotary: bool = False,
        biased: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.form, self.heads, self.size, self.keys, self.rotary, self.biased = form, heads, size, keys, rotary, biased
        self.query, self.key, self.value = (nn.Linear(WIDTH, count * size) for count in (heads, keys, keys))
        self.out = nn.Linear(heads * size, 3)
        self.bias = nn.Parameter(torch.randn(1, heads, POSITIONS, POSITIONS))

    def forward(self, x: Tensor) -> Tensor:
        parts = (part.view(*x.shape[:2], -1, self.size).transpose(1, 2) for part in self.projected(x))
        return self.out(self.attend(*parts, x.shape[0]).transpose(1, 2).reshape(*x.shape[:2], -1))

    def projected(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.query(x), self.key(x), self.value(x)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, batch: int) -> Tensor:
        if self.rotary:
            query, key = self.rotated(query), self.rotated(key)
        mask = self.bias if self.biased else None
        if self.form == "shared":
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
        key, value = (self.repeated(part) for part in (key, value))
        if self.form == "sdpa":
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        if self.form == "einsum":
            scores = torch.einsum("bhid,bhjd->bhij", query, key) * 0.5
            return torch.einsum("bhij,bhjd->bhid", self.probabilities(scores, mask), value)
        if self.form == "merged":
            flat = [part.reshape(batch * self.heads, POSITIONS, self.size) for part in (query, key, value)]
            scores = torch.bmm(flat[0], flat[1].transpose(1, 2)).view(batch, self.heads, POSITIONS, POSITIONS)
            rows = self.probabilities(scores, mask).view(batch * self.heads, POSITIONS, POSITIONS)
            return torch.bmm(rows, flat[2]).view(batch, self.heads, POSITIONS, self.size)
        return self.probabilities(query @ key.mT * 0.5, mask) @ value

    def probabilities(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return (scores if mask is None else scores + mask).softmax(-1)

    def repeated(self, part: Tensor) -> Tensor:
        """The keys or values of each query, as transformers writes it."""
        batch, keys, positions, size = part.shape
        times = self.heads // keys
        return part[:, :, None].expand(batch, keys, times, positions, size).reshape(batch, -1, positions, size)

    def rotated(self, part: Tensor) -> Tensor:
        angles = torch.arange(POSITIONS)[:, None] * torch.linspace(0.2, 1, self.size)
        left, right = part.chunk(2, -1)
        return part * angles.cos() + torch.cat((-right, left), -1) * angles.sin()


def inputs(batch: int = 3) -> Tensor:
    """Inputs of the network."""
    return torch.randn(batch, POSITIONS, WIDTH, generator=torch.Generator().manual_seed(0))


def heads(*args, **options) -> Heads:
    """A network in evaluation mode; equal arguments give equal weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Heads(*args, **options).eval()
