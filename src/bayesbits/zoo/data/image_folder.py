"""Photographs in folders, as ImageNet's are kept: one folder for each class, each file read when it is asked for.

Classes are numbered by the sorted names of their folders; for ImageNet's own names this is the usual order. Files and
folders whose names begin with a dot are left out. A photograph of any size becomes a square by the usual crops of
ImageNet, whose sizes and rounding are those with which published weights were trained and measured.
"""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from bayesbits.utils.optional_packages import require_packages

if TYPE_CHECKING:
    from PIL.Image import Image

_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff")
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_AREA = (0.08, 1.0)  # of a random crop, as a part of the photograph
_SHAPE = (3 / 4, 4 / 3)  # width over height of a random crop
_TRIES = 10
_MARGIN = 256 / 224  # shorter side over size, before the center crop

Box = tuple[int, int, int, int]
"""Left, upper, right, lower."""


class ImageFolder(TorchDataset[tuple[Tensor, int]]):
    """The photographs under `folder` as (uint8 image [3, size, size], label), for a `DataLoader`.

    For training an image is a random crop, resized, and mirrored half the time; otherwise it is the center of the
    resized photograph. `mean` and `std` are ImageNet's, which published weights expect; `normalize` applies them.
    """

    mean = IMAGENET_MEAN
    std = IMAGENET_STD

    def __init__(self, folder: Path | str, size: int = 224, train: bool = False) -> None:
        if size < 1:
            raise ValueError(f"size is {size}; images have at least one pixel")
        self.folder = Path(folder)
        self.size = size
        self.train = train
        self.class_names = _class_names(self.folder)
        self.paths: list[str] = []
        labels: list[int] = []
        for label, name in enumerate(self.class_names):
            paths = _pictures(self.folder / name)
            if not paths:
                warnings.warn(f"the class folder {self.folder / name} holds no pictures", stacklevel=2)
            self.paths += paths
            labels += [label] * len(paths)
        if not self.paths:
            raise ValueError(f"no pictures in the class folders of {self.folder}; looked for {', '.join(_ENDINGS)}")
        self.labels = torch.tensor(labels)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = read_picture(self.paths[index])
        cropped = random_crop(picture, self.size) if self.train else center_crop(picture, self.size)
        return as_tensor(cropped), int(self.labels[index])


@dataclass(frozen=True, eq=False)
class FolderData:
    """Training and test photographs with their statistics, as in `Data`."""

    train: ImageFolder
    test: ImageFolder
    mean: tuple[float, ...]
    std: tuple[float, ...]
    name: str


def image_folder(folder: Path | str, size: int = 224) -> FolderData:
    """The photographs under `folder`/train and `folder`/val, with the same classes in both."""
    train = ImageFolder(Path(folder) / "train", size, train=True)
    test = ImageFolder(Path(folder) / "val", size)
    different = sorted(set(train.class_names) ^ set(test.class_names))
    if different:
        which = train if different[0] in train.class_names else test
        raise ValueError(
            f"train and val of {folder} have different classes: {different[0]!r} is only in {which.folder}"
        )
    return FolderData(train, test, ImageFolder.mean, ImageFolder.std, Path(folder).absolute().name)


def read_picture(path: str | os.PathLike[str]) -> Image:
    """The picture in `path` as RGB, read to its end; a ValueError names a file that cannot be read."""
    require_packages(f"reading {os.fspath(path)}", "PIL")
    import PIL.Image

    try:
        with PIL.Image.open(path) as picture:
            return picture.convert("RGB")
    except Exception as error:  # a damaged file can raise nearly anything from Pillow's many formats
        raise ValueError(f"{os.fspath(path)} cannot be read as a picture: {error}") from error


def as_tensor(picture: Image) -> Tensor:
    """uint8, [3, height, width]."""
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()


def random_crop(picture: Image, size: int) -> Image:
    """A rectangle of random place, area (8% to all of it) and shape (3:4 to 4:3), resized; mirrored half the time.

    Random numbers come from torch, so that the workers of a `DataLoader` draw different ones and a seed repeats them.
    """
    picture = _resized(picture.crop(random_box(*picture.size)), size, size)
    require_packages("mirroring pictures", "PIL")
    from PIL.Image import Transpose

    return picture.transpose(Transpose.FLIP_LEFT_RIGHT) if torch.rand(()).item() < 0.5 else picture


def center_crop(picture: Image, size: int) -> Image:
    """The center of the picture after its shorter side is resized to 256/224 of `size`."""
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
    # No try fitted a very long picture: the largest central rectangle of an allowed shape.
    box_width = min(width, max(1, round(height * _SHAPE[1])))
    box_height = min(height, max(1, round(width / _SHAPE[0])))
    left, upper = (width - box_width) // 2, (height - box_height) // 2
    return left, upper, left + box_width, upper + box_height


def _class_names(folder: Path) -> tuple[str, ...]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; expected one with a subfolder of pictures for each class")
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise ValueError(f"{folder} has no classes; expected a subfolder of pictures for each")
    return tuple(names)


def _pictures(folder: Path) -> list[str]:
    paths: list[str] = []
    for place, subfolders, names in os.walk(folder):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        pictures = (name for name in names if name.lower().endswith(_ENDINGS) and not name.startswith("."))
        paths += [os.path.join(place, name) for name in pictures]
    return sorted(paths)


def _uniform(low: float, high: float) -> float:
    return low + (high - low) * torch.rand(()).item()


def _resized(picture: Image, width: int, height: int) -> Image:
    require_packages("resizing pictures", "PIL")
    from PIL.Image import Resampling

    return picture.resize((width, height), Resampling.BILINEAR)
