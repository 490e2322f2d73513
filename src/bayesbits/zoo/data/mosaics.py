"""CIFAR-10 as mosaics: each batch one lossless WebP picture.

The tiles of a picture are the images of its batch, 32 x 32 each, row by row from the left. `labels.u8` holds one byte
an image, of the five training batches and then of the test batch.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayesbits.zoo.data.pictures import as_tensor, read_picture

_TILE = 32
_TRAIN = tuple(f"data_batch_{number}.webp" for number in range(1, 6))
_TEST = "test_batch.webp"
_LABELS = "labels.u8"
FILES = (*_TRAIN, _TEST, _LABELS)


def read_mosaics(paths: Mapping[str, Path], classes: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images and labels for training and for testing, from the files that `paths` has by their names in `FILES`."""
    train = torch.cat([_tiles(paths[name]) for name in _TRAIN])
    test = _tiles(paths[_TEST])
    labels = torch.from_numpy(np.fromfile(paths[_LABELS], np.uint8).astype(np.int64))
    if len(labels) != len(train) + len(test):
        raise ValueError(
            f"{paths[_LABELS]} holds {len(labels)} labels, but the mosaics have {len(train)} training and "
            f"{len(test)} test tiles"
        )
    if int(labels.max()) >= classes:
        raise ValueError(f"{paths[_LABELS]} holds the label {int(labels.max())}; labels are 0 to {classes - 1}")
    return (train, labels[: len(train)]), (test, labels[len(train) :])


def _tiles(path: Path) -> Tensor:
    mosaic = as_tensor(read_picture(path))
    channels, height, width = mosaic.shape
    if height % _TILE or width % _TILE:
        raise ValueError(f"{path} is {height} x {width} pixels, not a mosaic of {_TILE} x {_TILE} tiles")
    tiles = mosaic.view(channels, height // _TILE, _TILE, width // _TILE, _TILE)
    return tiles.permute(1, 3, 0, 2, 4).reshape(-1, channels, _TILE, _TILE)
