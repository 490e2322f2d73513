"""Small random networks with quantizers attached, and gates with random logits."""

import random
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import bayesbits as bb


class Blocks(nn.Module):
    """Convolutions, some beside a residual connection, some depthwise, some concatenated; then a classifier."""

    def __init__(self, kinds: list[str], widths: list[int]) -> None:
        super().__init__()
        self.kinds, self.layers = kinds, nn.ModuleList()
        channels = 2
        for kind, width in zip(kinds, widths, strict=True):
            out = channels if kind in ("residual", "depthwise") else width
            groups = channels if kind == "depthwise" else 1
            self.layers.append(nn.Conv2d(channels, out, 3, padding=1, groups=groups, bias=kind != "plain"))
            channels = channels + out if kind == "concat" else out
        self.head = nn.Linear(channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        for kind, layer in zip(self.kinds, self.layers, strict=True):
            y = F.relu(layer(x))
            x = x + y if kind == "residual" else torch.cat([x, y], 1) if kind == "concat" else y
        return self.head(x.mean((2, 3)))


RULES: list[dict[str, Any]] = [
    {},
    {"head": {"bits": 8}},
    {"layers.0": {"min_bits": 4, "prune": False}},
    {"head": {"skip": True}},
    {"layers.*": {"min_channels": 3}},
]


@cache
def compressor(seed: int) -> bb.Compressor:
    """A random network with a random spec and rules; always the same for a seed, and made once."""
    choose = random.Random(seed)
    kinds = ["plain", *choose.choices(["plain", "residual", "depthwise", "concat"], k=choose.randint(0, 3))]
    spec = bb.Spec(
        bits=choose.choice([(2, 4, 8), (2, 4, 8, 16, 32), (4,)]),
        channel_multiple=choose.choice([1, 2, 3]),
        residual_bits=choose.choice([8, None, "learned"]),
        rules=choose.choice(RULES),
    )
    return bb.attach(Blocks(kinds, [choose.randint(1, 6) for _ in kinds]), torch.zeros(1, 2, 4, 4), spec)


@st.composite
def compressors(draw: Any) -> bb.Compressor:
    """A network with random logits of all gates."""
    handle = compressor(draw(st.integers(0, 15)))
    set_logits(handle, draw(st.sampled_from([0.0, 1.0, 5.0])), draw(st.integers(0, 1000)))
    return handle


def set_logits(handle: bb.Compressor, scale: float, seed: int) -> None:
    """Give all gates normally distributed logits; a scale of 0 leaves them equal."""
    generator = torch.Generator().manual_seed(seed)
    attachment = handle.attachment
    for owner in (*attachment.quantizers.values(), *attachment.channel_gates.values()):
        owner.gates.logits.data = scale * torch.randn(owner.gates.logits.shape, generator=generator)
