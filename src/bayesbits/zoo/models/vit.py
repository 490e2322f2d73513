"""A small vision transformer for 28 x 28 x 1 images: 16 patches of 7 x 7 pixels, and blocks of attention and MLP.

Blocks normalize in front of each branch (pre-norm), and the head reads the mean over all patches.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Self-attention of several heads, with one layer for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width is {width}, which cannot be shared by {heads} heads")
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, positions, width = x.shape
        shared = self.qkv(x).reshape(batch, positions, 3, self.heads, width // self.heads)
        query, key, value = shared.permute(2, 0, 3, 1, 4).unbind(0)
        heads = F.scaled_dot_product_attention(query, key, value)
        result: Tensor = self.proj(heads.transpose(1, 2).reshape(batch, positions, width))
        return result


class Block(nn.Module):
    """Attention and MLP, each with a normalization in front of it and a residual connection around it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class VisionTransformer(nn.Module):
    """Patches, positions, blocks, and a linear head; returns logits."""

    def __init__(
        self,
        num_classes: int = 10,
        image_size: int = 28,
        patch_size: int = 7,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
    ) -> None:
        super().__init__()
        if image_size % patch_size:
            raise ValueError(f"image_size is {image_size}, which is no multiple of patch_size, {patch_size}")
        self.patches = nn.Conv2d(1, width, patch_size, stride=patch_size)
        self.positions = nn.Parameter(0.02 * torch.randn(1, (image_size // patch_size) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        logits: Tensor = self.head(self.norm(self.blocks(x)).mean(1))
        return logits
