"""Photographs in folders, as ImageNet's are kept: one folder a class, each file read when it is asked for.

Classes are numbered by the names of their folders, sorted; for ImageNet's own names this is the usual order. Files and
folders whose names begin with a dot are not looked at.
"""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from bayesbits.zoo.data.crops import center_crop, random_crop
from bayesbits.zoo.data.pictures import as_tensor, read_picture

_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff")
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class ImageFolder(TorchDataset[tuple[Tensor, int]]):
    """The photographs under `folder` as (uint8 image [3, size, size], label), for a `DataLoader`.

    For training an image is a random crop, resized and mirrored or not; otherwise the middle of the resized photograph.
    `mean` and `std` are ImageNet's, which published weights expect; `normalize(images, this)` applies them.
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
        """How many classes there are."""
        return len(self.class_names)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = read_picture(self.paths[index])
        cropped = random_crop(picture, self.size) if self.train else center_crop(picture, self.size)
        return as_tensor(cropped), int(self.labels[index])


@dataclass(frozen=True, eq=False)
class FolderData:
    """As `Data`, for photographs that are read when they are asked for."""

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
