"""A small classifier with batch norm, dropout and a residual addition, and examples that it can tell apart."""

import copy
from functools import cache

import torch
from torch import Tensor, nn

import bayesbits as bb

FEW = bb.PosttrainConfig(mus=(0.001, 0.03, 0.3), steps=30, gate_lr=0.5)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.relu = nn.ReLU()
        self.hidden = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.stem(x)))
        return self.head(self.dropout(self.relu(self.hidden(x) + x)))


def examples(count: int = 64, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator)
    return x, x[:, :3].argmax(1)


@cache
def _trained() -> nn.Module:
    torch.manual_seed(0)
    model, (x, y) = Small(), examples(512, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


def trained() -> nn.Module:
    """The network after a second of training: its float accuracy is above 90%."""
    return copy.deepcopy(_trained())


def attached(spec: bb.Spec | None = None) -> bb.Compressor:
    return bb.attach(trained(), torch.zeros(2, 4), spec or bb.Spec(prune=False, residual_bits=None))


def accuracy(model: nn.Module) -> float:
    x, y = examples(512, seed=2)
    with torch.no_grad():
        return (model(x).argmax(1) == y).double().mean().item() * 100


def pairs(size: int = 32) -> list[tuple[Tensor, Tensor]]:
    """Batches of inputs and labels."""
    x, y = examples(128)
    return list(zip(x.split(size), y.split(size), strict=True))
