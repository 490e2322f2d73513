"""Small data sets in the file formats of the large ones, written from arrays that the tests keep; and `refused`."""

import gzip
import io
import pickle
import re
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

Bytes = NDArray[np.uint8]

CIFAR_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def refused(error: type[Exception], *parts: object) -> Any:
    """A check that `error` is raised with all of these parts in its message, in their order."""
    return pytest.raises(error, match="(?s)" + ".*".join(re.escape(str(part)) for part in parts))


def noise(*shape: int, seed: int = 0, below: int = 256) -> Bytes:
    return np.random.default_rng(seed).integers(0, below, shape, dtype=np.uint8)


def labels_of(number: int) -> Bytes:
    """Labels that differ from one image to the next."""
    return (np.arange(number) * 7 % 10).astype(np.uint8)


def idx_bytes(array: Bytes) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder: Path, packed: bool = True, train: int = 12, test: int = 5, seed: int = 0) -> dict[str, Bytes]:
    """The four IDX files; returns what each holds."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        IDX_FILES[0]: noise(train, 28, 28, seed=seed),
        IDX_FILES[1]: labels_of(train),
        IDX_FILES[2]: noise(test, 28, 28, seed=seed + 1),
        IDX_FILES[3]: labels_of(test),
    }
    for name, array in content.items():
        raw = idx_bytes(array)
        (folder / f"{name}{'.gz' if packed else ''}").write_bytes(gzip.compress(raw) if packed else raw)
    return content


def cifar_arrays(number: int = 6) -> dict[str, tuple[Bytes, Bytes]]:
    """Images [N, 3, 32, 32] and labels by batch; `number` of them in each."""
    return {
        name: (noise(number, 3, 32, 32, seed=seed), (labels_of(number) + seed) % 10)
        for seed, name in enumerate(CIFAR_BATCHES)
    }


def pickled_batch(images: Bytes, labels: Bytes, protocol: int = 2) -> bytes:
    """As Python 3 and today's NumPy write it."""
    content = {b"data": images.reshape(len(images), -1), b"labels": labels.tolist(), b"batch_label": b"a batch"}
    return pickle.dumps(content, protocol=protocol)


def python2_batch(images: Bytes, labels: Bytes) -> bytes:
    """As the published batches are: Python 2 strings, and NumPy's names of that time."""

    def string(text: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(text)) + text

    def integer(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    rows = images.reshape(len(images), -1)
    element_type = (
        b"cnumpy\ndtype\n(" + string(b"u1") + integer(0) + integer(1) + b"tR"
        b"(" + integer(3) + string(b"|") + b"NNN" + integer(-1) + integer(-1) + integer(0) + b"tb"
    )
    shape = b"(" + integer(rows.shape[0]) + integer(rows.shape[1]) + b"t"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(" + integer(0) + b"t" + string(b"b") + b"tR"
        b"(" + integer(1) + shape + element_type + b"I00\n" + string(rows.tobytes()) + b"tb"
    )
    listed = b"](" + b"".join(integer(int(label)) for label in labels) + b"e"
    names = b"](" + string(b"a.png") + b"e"
    entries = {b"data": array, b"labels": listed, b"batch_label": string(b"batch 1 of 5"), b"filenames": names}
    return b"\x80\x02}(" + b"".join(string(key) + value for key, value in entries.items()) + b"u."


def write_batches(folder: Path, batches: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in batches.items():
        (folder / name).write_bytes(content)


def write_archive(path: Path, batches: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {"batches.meta": b"not looked at", **batches}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def write_pictures(folder: Path, pictures: Mapping[str, Bytes]) -> None:
    """Pictures [height, width, 3] by their path under `folder`."""
    for name, pixels in pictures.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
