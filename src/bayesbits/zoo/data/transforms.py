"""Transforms of image batches on the device where they lie: normalization and augmentation.

Mean and standard deviation are computed from a histogram of the 256 values that a pixel can have, in integers: the sums
are exact for any number of images, and only the last division and the square root round. Augmentation pads every image
on all sides, crops it back to its size at a random place, and mirrors it or not. It is one lookup: each pixel of the
result is read from the row and the column to which crop and mirror map it.
"""

import math
from fractions import Fraction
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

WHITE = 255


class Statistics(Protocol):
    """Anything that has the statistics of its images: `Data`, and an image folder."""

    @property
    def mean(self) -> tuple[float, ...]: ...

    @property
    def std(self) -> tuple[float, ...]: ...


def mean_and_std(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and population standard deviation (over N) of the pixels of each channel, in units where white is 1."""
    moments = [_moments(images[:, channel]) for channel in range(images.shape[1])]
    return tuple(mean for mean, _ in moments), tuple(std for _, std in moments)


def normalize(images: Tensor, data: Statistics) -> Tensor:
    """uint8 images, one or a batch, as float32, so that the training pixels of `data` have mean 0 and deviation 1.

    Nothing is copied from the host, so that a CUDA graph can record it. A channel that is the same in all training
    images is only centered.
    """
    if images.dtype != torch.uint8:
        raise ValueError(f"images are normalized from uint8, once; these are {images.dtype}")
    if images.shape[-3] != len(data.mean):
        raise ValueError(f"images of {images.shape[-3]} channels do not fit statistics of {len(data.mean)}")
    mean = _constants([WHITE * mean for mean in data.mean], images.device)
    std = _constants([WHITE * std or 1.0 for std in data.std], images.device)
    return (images.float() - mean) / std


def augment(images: Tensor, generator: torch.Generator | None = None, padding: int = 4, flip: bool = True) -> Tensor:
    """Random crops of the zero-padded images [N, C, H, W], half of them mirrored left to right if `flip`.

    Size and dtype stay. Zero is black before `normalize` and the mean color after it. A `generator` must be of the
    images' device; the numbers drawn depend only on N, `padding` and `flip`.
    """
    if images.ndim != 4:
        raise ValueError(f"augment takes a batch [N, C, H, W], not {list(images.shape)}")
    if padding < 0:
        raise ValueError(f"padding is {padding}; it must be 0 or more")
    number, channels, height, width = images.shape
    device = images.device
    offsets = torch.randint(2 * padding + 1, (2, number, 1), generator=generator, device=device)
    rows = offsets[0] + torch.arange(height, device=device)
    columns = torch.arange(width, device=device).expand(number, width)
    if flip:
        mirrored = torch.randint(2, (number, 1), generator=generator, device=device).bool()
        columns = torch.where(mirrored, width - 1 - columns, columns)
    columns = columns + offsets[1]
    padded = F.pad(images, (padding, padding, padding, padding))
    # One index into a flattened image, shared by its channels: 2 to 3 times as fast on a CPU as an index a dimension.
    places = (rows.unsqueeze(2) * padded.shape[3] + columns.unsqueeze(1)).view(number, 1, height * width)
    return padded.flatten(2).gather(2, places.expand(-1, channels, -1)).view(images.shape)


def _moments(pixels: Tensor) -> tuple[float, float]:
    counts: list[int] = torch.bincount(pixels.flatten(), minlength=WHITE + 1).tolist()
    number = sum(counts)
    total = sum(value * count for value, count in enumerate(counts))
    total_of_squares = sum(value * value * count for value, count in enumerate(counts))
    variance = Fraction(number * total_of_squares - total * total, (number * WHITE) ** 2)
    return total / (number * WHITE), math.sqrt(variance)


def _constants(values: list[float], device: torch.device) -> Tensor:
    # Filled on the device one by one: a tensor made from a list would be copied there, and would wait for the copy.
    return torch.stack([torch.full((1, 1), value, device=device) for value in values])
