"""How a photograph of any size becomes a square: the usual ways of ImageNet, for training and for testing.

Sizes and rounding follow the habits that published ImageNet weights were trained and measured with.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from bayesbits.utils.optional_packages import require_packages

if TYPE_CHECKING:
    from PIL.Image import Image

_AREA = (0.08, 1.0)
_SHAPE = (3 / 4, 4 / 3)
_TRIES = 10
_MARGIN = 256 / 224

Box = tuple[int, int, int, int]
"""Left, upper, right, lower."""


def random_crop(picture: Image, size: int) -> Image:
    """A rectangle of random place, area (8% to all of it) and shape (3:4 to 4:3), resized; mirrored half the time.

    The numbers are torch's, so that a `DataLoader`'s workers draw different ones and a seed repeats them.
    """
    picture = _resized(picture.crop(random_box(*picture.size)), size, size)
    require_packages("mirroring pictures", "PIL")
    from PIL.Image import Transpose

    return picture.transpose(Transpose.FLIP_LEFT_RIGHT) if torch.rand(()).item() < 0.5 else picture


def center_crop(picture: Image, size: int) -> Image:
    """The middle of the picture after its shorter side is resized to 256/224 of `size`."""
    shorter = round(size * _MARGIN)
    width, height = (shorter * side // min(picture.size) for side in picture.size)
    left, upper = round((width - size) / 2), round((height - size) / 2)
    return _resized(picture, width, height).crop((left, upper, left + size, upper + size))


def random_box(width: int, height: int) -> Box:
    """The rectangle that `random_crop` takes from a picture of this size."""
    for _ in range(_TRIES):
        area = width * height * _uniform(*_AREA)
        shape = math.exp(_uniform(math.log(_SHAPE[0]), math.log(_SHAPE[1])))
        box_width, box_height = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < box_width <= width and 0 < box_height <= height:
            left = int(torch.randint(width - box_width + 1, ()))
            upper = int(torch.randint(height - box_height + 1, ()))
            return left, upper, left + box_width, upper + box_height
    # A very long picture: the largest rectangle in its middle that is not longer than allowed.
    box_width = min(width, max(1, round(height * _SHAPE[1])))
    box_height = min(height, max(1, round(width / _SHAPE[0])))
    left, upper = (width - box_width) // 2, (height - box_height) // 2
    return left, upper, left + box_width, upper + box_height


def _uniform(low: float, high: float) -> float:
    return low + (high - low) * torch.rand(()).item()


def _resized(picture: Image, width: int, height: int) -> Image:
    require_packages("resizing pictures", "PIL")
    from PIL.Image import Resampling

    return picture.resize((width, height), Resampling.BILINEAR)
