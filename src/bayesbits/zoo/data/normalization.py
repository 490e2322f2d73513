"""Mean and standard deviation of the training images, and the normalization that they define.

The sums are taken over a histogram of the 256 values that a pixel can have, in integers, so that they are exact however
many images there are; only the last division and the square root round.
"""

import math
from fractions import Fraction
from typing import Protocol

import torch
from torch import Tensor

WHITE = 255


class Statistics(Protocol):
    """Anything that says how its images are normalized: `Data`, and an image folder."""

    @property
    def mean(self) -> tuple[float, ...]: ...

    @property
    def std(self) -> tuple[float, ...]: ...


def mean_and_std(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of all pixels of a channel, in units where white is 1; the deviation is that of a population, over N."""
    moments = [_moments(images[:, channel]) for channel in range(images.shape[1])]
    return tuple(mean for mean, _ in moments), tuple(std for _, std in moments)


def normalize(images: Tensor, data: Statistics) -> Tensor:
    """uint8 images, one or a batch, as float32 with `data`'s training pixels at mean 0 and deviation 1.

    Nothing is copied from the host and nothing waited for, as a CUDA graph asks. A channel that is the same in all
    training images is only centered.
    """
    if images.dtype != torch.uint8:
        raise ValueError(f"images are normalized from uint8, once; these are {images.dtype}")
    if images.shape[-3] != len(data.mean):
        raise ValueError(f"images of {images.shape[-3]} channels do not fit statistics of {len(data.mean)}")
    mean = _constants([WHITE * mean for mean in data.mean], images.device)
    std = _constants([WHITE * std or 1.0 for std in data.std], images.device)
    return (images.float() - mean) / std


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
