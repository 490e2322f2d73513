"""Small networks with tables of embeddings."""

import torch
from torch import Tensor, nn

import bayesbits as bb

TOKENS = torch.tensor([[1, 3, 10], [0, 4, 1], [7, 7, 2]])


class Words(nn.Module):
    """Words and positions, a normalization and a layer."""

    def __init__(self, rows: int = 11) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(rows, 4, padding_idx=0), nn.Embedding(3, 4)
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.words(tokens) + self.positions(torch.arange(3, device=tokens.device))))


def fixed_words(bits: int, *, per_row: bool = True) -> bb.Compressor:
    """The network with tables of so many bits, ready to be deployed; its layer has 8 bits."""
    torch.manual_seed(0)
    compressor = bb.attach(Words().eval(), TOKENS, bb.Spec(per_channel_weights=per_row))
    compressor.calibrate([TOKENS])
    tables = dict.fromkeys(compressor.topology.table_tensors, bits)
    compressor.fix(bb.Plan({**bb.Plan.uniform(compressor.topology, 8, 8).bits, **tables}))
    return compressor


class Encoder(nn.Module):
    """Words and positions, a block of attention, and classes."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(20, 16), nn.Embedding(12, 16)
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.up, self.head = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.first(self.words(tokens) + self.positions(torch.arange(tokens.shape[1])))
        weights = torch.softmax(self.query(x) @ self.key(x).transpose(1, 2) / 4, -1)
        x = self.second(x + self.out(weights @ self.value(x)))
        return self.head(nn.functional.gelu(self.up(x)).mean(1))


def tokens(count: int, length: int) -> Tensor:
    return torch.randint(0, 20, (count, length), generator=torch.Generator().manual_seed(length))
