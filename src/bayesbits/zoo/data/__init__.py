"""The data sets of the zoo, by name.

    from bayesbits.zoo import data

    cifar10 = data.load("cifar10", folder="/where/it/lies")
    images = data.normalize(data.augment(cifar10.train.images[:128]), cifar10)

Small data sets are loaded whole, as bytes, and can be moved to a GPU; photographs in folders (`image_folder`) are read
one by one. Files are checked as they are read, nothing in them is ever run, and nothing is downloaded.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bayesbits.zoo.data.cifar import cifar10
from bayesbits.zoo.data.dataset import Data, Dataset
from bayesbits.zoo.data.digits import digits
from bayesbits.zoo.data.image_folder import FolderData, ImageFolder, image_folder
from bayesbits.zoo.data.mnist import fashion_mnist, mnist
from bayesbits.zoo.data.transforms import augment, mean_and_std, normalize

__all__ = [
    "Data",
    "Dataset",
    "FolderData",
    "ImageFolder",
    "augment",
    "image_folder",
    "load",
    "names",
    "normalize",
]

_LOADERS: dict[str, Callable[..., tuple[Dataset, Dataset]]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "cifar10": cifar10,
}


def names() -> tuple[str, ...]:
    """The names that `load` knows."""
    return tuple(_LOADERS)


def load(name: str, folder: Path | str | None = None, **options: Any) -> Data:
    """The data set `name`, from its files in `folder`/`name` or in `folder` itself.

    The default folder is the one that the environment variable BAYESBITS_DATA names, or `data` in the working
    directory. The digits need no files, and take the option `size`, their height and width in pixels.
    """
    if name not in _LOADERS:
        raise ValueError(f"the zoo has no data set named {name!r}; it has {', '.join(names())}")
    loader = _LOADERS[name]
    known = inspect.signature(loader).parameters
    for option in options:
        if option not in known:
            raise ValueError(f"the data set {name!r} has no option {option!r}")
    train, test = loader(folder, **options)
    mean, std = mean_and_std(train.images)
    return Data(train, test, mean, std, name)
