"""CIFAR-10, in whichever of three forms is found: the batches for Python, their archive, or mosaics.

A batch is a dictionary with `data`, a row of 3 x 32 x 32 bytes for each image, and `labels`, a list. The archive is
read without unpacking it to disk.
"""

import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from bayesbits.zoo.data.dataset import Dataset
from bayesbits.zoo.data.mosaics import FILES as MOSAIC_FILES
from bayesbits.zoo.data.mosaics import read_mosaics
from bayesbits.zoo.data.pickles import as_array, read_pickle
from bayesbits.zoo.data.places import find, not_found, places

_CLASSES = 10
_IMAGE = (3, 32, 32)
_TEST = "test_batch"
_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), _TEST)
_FOLDER = "cifar-10-batches-py"
_ARCHIVE = "cifar-10-python.tar.gz"
_EXPECTED = (
    f"the batches {', '.join(_BATCHES)}, together or in {_FOLDER}/; or {_ARCHIVE}; or the mosaics "
    f"{', '.join(MOSAIC_FILES)}, together or in part1/ and part2/"
)


def cifar10(folder: Path | str | None) -> tuple[Dataset, Dataset]:
    """Training and test images."""
    missing: dict[Path, str] = {}
    for place in places("cifar10", folder):
        batches = find(_BATCHES, [place / _FOLDER, place])
        mosaics = find(MOSAIC_FILES, [place, place / "part1", place / "part2"])
        if len(batches) == len(_BATCHES):
            return _split({name: _batch(path.read_bytes(), str(path)) for name, path in batches.items()})
        if (place / _ARCHIVE).is_file():
            contents = _from_archive(place / _ARCHIVE)
            return _split({name: _batch(contents[name], f"{name} in {place / _ARCHIVE}") for name in _BATCHES})
        if len(mosaics) == len(MOSAIC_FILES):
            (train_images, train_labels), (test_images, test_labels) = read_mosaics(mosaics, _CLASSES)
            return Dataset(train_images, train_labels, _CLASSES), Dataset(test_images, test_labels, _CLASSES)
        begun = [(names, found) for names, found in ((_BATCHES, batches), (MOSAIC_FILES, mosaics)) if found]
        lacking = [name for names, found in begun[:1] for name in names if name not in found]
        missing[place] = ", ".join(lacking) or "batches, archive and mosaics"
    raise not_found("cifar10", _EXPECTED, missing)


def _from_archive(path: Path) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                stream = archive.extractfile(member) if name in _BATCHES and member.isfile() else None
                if stream is not None:
                    contents[name] = stream.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path} is truncated or damaged: {error}") from error
    lacking = [name for name in _BATCHES if name not in contents]
    if lacking:
        raise ValueError(f"{path} holds no {', '.join(lacking)}")
    return contents


def _batch(content: bytes, source: str) -> tuple[Tensor, Tensor]:
    batch = read_pickle(content, source)
    pixels = as_array(_entry(batch, "data", source))
    labels = _entry(batch, "labels", source)
    if pixels is None or pixels.ndim != 2 or pixels.shape[1] != torch.Size(_IMAGE).numel():
        held = "no array" if pixels is None else f"an array of {' x '.join(map(str, pixels.shape))}"
        raise ValueError(f"{source} has {held} as its data; expected N x {torch.Size(_IMAGE).numel()} bytes")
    if not isinstance(labels, list) or len(labels) != len(pixels):
        held = f"{len(labels)} labels" if isinstance(labels, list) else f"labels of type {type(labels).__name__}"
        raise ValueError(f"{source} has {len(pixels)} images but {held}")
    for label in labels:
        if not isinstance(label, int) or not 0 <= label < _CLASSES:
            raise ValueError(f"{source} has the label {label!r}; labels are 0 to {_CLASSES - 1}")
    return torch.from_numpy(pixels.copy()).view(-1, *_IMAGE), torch.tensor(labels, dtype=torch.int64)


def _entry(batch: Any, name: str, source: str) -> Any:
    if not isinstance(batch, dict):
        raise ValueError(f"{source} holds an object of type {type(batch).__name__}; expected a dictionary")
    for key in (name.encode(), name):
        if key in batch:
            return batch[key]
    raise ValueError(f"{source} has no {name!r}; its keys are {', '.join(map(repr, batch))}")


def _split(batches: dict[str, tuple[Tensor, Tensor]]) -> tuple[Dataset, Dataset]:
    train = [batches[name] for name in _BATCHES if name != _TEST]
    images, labels = (torch.cat(parts) for parts in zip(*train, strict=True))
    return Dataset(images, labels, _CLASSES), Dataset(*batches[_TEST], _CLASSES)
