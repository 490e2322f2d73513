"""CIFAR-10 from its batches for Python, in a folder or in their archive.

A batch is a pickled dictionary with `data`, a row of 3 x 32 x 32 bytes for each image, and `labels`, a list. The
archive is read without unpacking it to disk.

A pickle is a program: it names functions to be called. Here a name finds only the stand-in classes below, which note
what NumPy would have been told; the array is then made from the bytes. No function of NumPy or of another package is
called by a file, and every other name is refused.
"""

import io
import math
import pickle
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesbits.zoo.data.dataset import Dataset
from bayesbits.zoo.data.sources import candidate_folders, find_files, not_found

_CLASSES = 10
_IMAGE = (3, 32, 32)
_TEST = "test_batch"
_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), _TEST)
_FOLDER = "cifar-10-batches-py"
_ARCHIVE = "cifar-10-python.tar.gz"
_EXPECTED = f"the batches {', '.join(_BATCHES)}, in the folder itself or in {_FOLDER}/; or the archive {_ARCHIVE}"


def cifar10(folder: Path | str | None) -> tuple[Dataset, Dataset]:
    """Training and test images."""
    missing: dict[Path, str] = {}
    for place in candidate_folders("cifar10", folder):
        batches = find_files(_BATCHES, [place / _FOLDER, place])
        if len(batches) == len(_BATCHES):
            return _split({name: _batch(path.read_bytes(), str(path)) for name, path in batches.items()})
        if (place / _ARCHIVE).is_file():
            contents = _from_archive(place / _ARCHIVE)
            return _split({name: _batch(contents[name], f"{name} in {place / _ARCHIVE}") for name in _BATCHES})
        lacking = [name for name in _BATCHES if name not in batches]
        missing[place] = ", ".join(lacking) if batches else "batches and archive"
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
    batch = _read_pickle(content, source)
    pixels = _as_array(_entry(batch, "data", source))
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


def _read_pickle(content: bytes, source: str) -> Any:
    """The object in a pickle of containers, numbers, strings and byte arrays; strings of Python 2 become bytes."""
    try:
        return _Restricted(io.BytesIO(content), encoding="bytes").load()
    except _RefusedError as error:
        raise ValueError(f"{source} was refused: {error}") from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise ValueError(f"{source} is truncated or damaged: {type(error).__name__}: {error}") from error


def _as_array(value: Any) -> NDArray[np.uint8] | None:
    """The array that a pickle held, or None where `value` is something else."""
    return value.array if isinstance(value, _Array) else None


class _RefusedError(Exception):
    """A pickle asked for something that a batch of images does not need."""


class _StandIn:
    """The class that a name in a pickle finds; its own `__setstate__` keeps a pickle from changing attributes."""

    def __setstate__(self, state: Any) -> None:
        pass


class _ElementType(_StandIn):
    """In the place of numpy.dtype, for unsigned bytes only."""

    def __init__(self, code: Any, *_flags: Any) -> None:
        if code not in ("u1", b"u1"):
            raise _RefusedError(f"it holds an array of type {code!r}; only unsigned bytes, 'u1', are read")


class _Array(_StandIn):
    """In the place of an array that is made first and filled afterwards."""

    array: NDArray[np.uint8] | None = None

    def __init__(self, *_made_as: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        _version, shape, element_type, fortran, content = state
        self.fill(content, element_type, shape, "F" if fortran else "C")

    def fill(self, content: Any, element_type: Any, shape: Any, order: Any) -> None:
        if not isinstance(element_type, _ElementType) or not isinstance(content, bytes | bytearray):
            raise _RefusedError("it holds an array that is not made of bytes")
        if len(content) != math.prod(shape):
            raise _RefusedError(f"it holds an array of shape {shape} with {len(content)} bytes")
        self.array = np.frombuffer(bytes(content), np.uint8).reshape(shape, order="F" if order == "F" else "C")


class _FilledArray(_Array):
    """In the place of an array that is made from its bytes at once, as newer pickles do."""

    def __init__(self, content: Any, element_type: Any, shape: Any, order: Any) -> None:
        self.fill(content, element_type, shape, order)


class _Bytes(_StandIn):
    """In the place of `_codecs.encode`, by which Python 3 writes bytes into pickles for Python 2."""

    def __new__(cls, text: Any, encoding: Any) -> Any:
        if not isinstance(text, str) or encoding != "latin1":
            raise _RefusedError(f"it encodes text as {encoding!r}; only bytes written as latin1 are read")
        return text.encode("latin1")


_KNOWN: dict[tuple[str, str], type[_StandIn]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _ElementType,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _FilledArray,
    ("numpy._core.numeric", "_frombuffer"): _FilledArray,
    ("_codecs", "encode"): _Bytes,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[_StandIn]:
        if (module, name) not in _KNOWN:
            raise _RefusedError(
                f"it asks for {module}.{name}, which a batch of images does not need; nothing of it was run"
            )
        return _KNOWN[module, name]

    def persistent_load(self, reference: Any) -> Any:
        raise _RefusedError(f"it refers to {reference!r} outside of the file")
