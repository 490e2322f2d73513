"""MNIST and Fashion-MNIST from IDX files, compressed by gzip or not.

An IDX file begins with two zero bytes, a code for the type of its elements and the number of dimensions, then each
dimension as a big-endian 32-bit integer. The elements follow, with the last dimension contiguous. The header is checked
against the length of the file.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayesbits.zoo.data.dataset import Dataset
from bayesbits.zoo.data.sources import candidate_folders, find_files, not_found

_UNSIGNED_BYTE = 0x08
_GZIP = b"\x1f\x8b"
_CLASSES = 10
_SIZE = 28
_NAMES = tuple(f"{split}-{kind}-ubyte" for split in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


def mnist(folder: Path | str | None) -> tuple[Dataset, Dataset]:
    """Training and test images of the handwritten digits."""
    return _load("mnist", folder)


def fashion_mnist(folder: Path | str | None) -> tuple[Dataset, Dataset]:
    """Training and test images of the clothes; the files are named as MNIST's."""
    return _load("fashion_mnist", folder)


def read_idx(path: Path) -> Tensor:
    """The array in an IDX file of unsigned bytes, as a uint8 tensor of the shape that its header gives."""
    content = _decompressed(path)
    if len(content) < 4 or content[:2] != b"\0\0":
        raise ValueError(f"{path} is not an IDX file: it begins with the bytes {content[:4].hex(' ') or '(none)'}")
    kind, dimensions = content[2], content[3]
    if kind != _UNSIGNED_BYTE:
        raise ValueError(f"{path} holds elements of type 0x{kind:02x}; expected unsigned bytes, 0x{_UNSIGNED_BYTE:02x}")
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise ValueError(f"{path} is truncated: it ends within its header")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    promised, held = math.prod(shape), len(content) - start
    if promised != held:
        state = "is truncated" if held < promised else "is too long"
        raise ValueError(f"{path} {state}: its header promises {_by(shape)} = {promised} bytes, and {held} follow")
    if not promised:
        raise ValueError(f"{path} is empty: its header says {_by(shape)}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())


def _load(name: str, folder: Path | str | None) -> tuple[Dataset, Dataset]:
    missing: dict[Path, str] = {}
    for place in candidate_folders(name, folder):
        found = find_files(_NAMES, [place], endings=(".gz", ""))
        if len(found) == len(_NAMES):
            train_images, train_labels, test_images, test_labels = (found[name] for name in _NAMES)
            return _split(train_images, train_labels), _split(test_images, test_labels)
        missing[place] = ", ".join(name for name in _NAMES if name not in found)
    raise not_found(name, f"the files {', '.join(_NAMES)}, as they are or with .gz", missing)


def _split(image_path: Path, label_path: Path) -> Dataset:
    images, labels = read_idx(image_path), read_idx(label_path)
    if images.shape[1:] != (_SIZE, _SIZE):
        raise ValueError(f"{image_path} holds an array of {_by(images.shape)}; expected N x {_SIZE} x {_SIZE} images")
    if labels.ndim != 1:
        raise ValueError(f"{label_path} holds an array of {_by(labels.shape)}; expected N labels")
    if len(images) != len(labels):
        raise ValueError(f"{image_path} holds {len(images)} images, but {label_path} holds {len(labels)} labels")
    if int(labels.max()) >= _CLASSES:
        raise ValueError(f"{label_path} holds the label {int(labels.max())}; labels are 0 to {_CLASSES - 1}")
    return Dataset(images.unsqueeze(1), labels.long(), _CLASSES)


def _decompressed(path: Path) -> bytes:
    # The content decides, not the name: some programs unpack a download and leave the name as it was.
    content = path.read_bytes()
    if content[:2] != _GZIP:
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is truncated or damaged: {error}") from error


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "no dimension"
