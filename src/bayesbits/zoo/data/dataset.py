"""A loaded data set: images and labels in memory, and the statistics that normalize them.

Pixels are kept as the bytes of the files, a quarter of their size in float32, so that a data set fits on a GPU beside
the network; `normalize` converts them to float, batch by batch, on the device where they lie.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Dataset:
    """The images of one split."""

    images: Tensor
    """uint8, [N, C, H, W]."""
    labels: Tensor
    """int64, [N], from 0 to `classes` - 1."""
    classes: int
    """The number of classes, including those without an image here."""

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(f"images must be uint8 [N, C, H, W]; these are {_described(self.images)}")
        if self.labels.dtype != torch.int64 or self.labels.ndim != 1:
            raise ValueError(f"labels must be int64 [N]; these are {_described(self.labels)}")
        if len(self.images) != len(self.labels):
            raise ValueError(f"{len(self.images)} images do not fit {len(self.labels)} labels")
        if self.images.numel() == 0:
            raise ValueError(f"a data set without pixels: the images are {_described(self.images)}")
        lowest, highest = int(self.labels.min()), int(self.labels.max())
        if lowest < 0 or highest >= self.classes:
            raise ValueError(
                f"labels run from {lowest} to {highest}; with {self.classes} classes they end at most at "
                f"{self.classes - 1}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> Dataset:
        """The same images and labels on `device`."""
        return Dataset(self.images.to(device), self.labels.to(device), self.classes)


@dataclass(frozen=True, eq=False)
class Data:
    """Training and test images with their statistics."""

    train: Dataset
    """The training images."""
    test: Dataset
    """The test images."""
    mean: tuple[float, ...]
    """The mean of the training pixels of each channel, where black is 0 and white is 1."""
    std: tuple[float, ...]
    """The standard deviation of the training pixels of each channel; 0 for a constant channel."""
    name: str
    """The name by which it was loaded."""


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
