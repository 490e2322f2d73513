"""Converts CIFAR-10 from WebP mosaics into the batches for Python that `bayesbits.zoo.data` reads.

    python -m experiments.cifar10_mosaics FOLDER OUT

Each batch is one lossless WebP picture. Its tiles, 32 x 32 pixels each and row by row from the left, are the images of
the batch. `labels.u8` holds one byte for each image of the five training batches and then of the test batch. The files
lie in FOLDER, in FOLDER/part1 or in FOLDER/part2. The batches are written to OUT/cifar-10-batches-py, so that
`data.load("cifar10", OUT)` finds them.
"""

import argparse
import pickle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

TILE = 32
CLASSES = 10
BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
LABELS = "labels.u8"
PARTS = ("", "part1", "part2")
WRITTEN = "cifar-10-batches-py"

Bytes = NDArray[np.uint8]


def convert(folder: Path, out: Path) -> Path:
    """Write the six batches, and return the folder that holds them."""
    images = {name: read_tiles(find(folder, f"{name}.webp")) for name in BATCHES}
    counts = [len(images[name]) for name in BATCHES]
    labels = read_labels(find(folder, LABELS), sum(counts))
    written = out / WRITTEN
    written.mkdir(parents=True, exist_ok=True)
    parts = np.split(labels, np.cumsum(counts)[:-1])
    for name, own_labels in zip(BATCHES, parts, strict=True):
        # Protocol 2 and keys of text, as readers of the published batches expect them.
        rows = images[name].reshape(len(images[name]), -1)
        content = {"data": rows, "labels": own_labels.tolist(), "batch_label": name}
        (written / name).write_bytes(pickle.dumps(content, protocol=2))
    return written


def read_tiles(path: Path) -> Bytes:
    """The tiles of a mosaic, [N, 3, 32, 32]."""
    try:
        with Image.open(path) as picture:
            mosaic = np.asarray(picture.convert("RGB"))
    except Exception as error:  # a damaged file can raise nearly anything
        raise ValueError(f"{path} cannot be read as a picture: {error}") from error
    height, width, channels = mosaic.shape
    if height % TILE or width % TILE:
        raise ValueError(f"{path} is {height} x {width} pixels, not a mosaic of {TILE} x {TILE} tiles")
    tiles = mosaic.reshape(height // TILE, TILE, width // TILE, TILE, channels)
    return np.ascontiguousarray(tiles.transpose(0, 2, 4, 1, 3).reshape(-1, channels, TILE, TILE))


def read_labels(path: Path, count: int) -> Bytes:
    """The labels, one byte each."""
    labels = np.fromfile(path, np.uint8)
    if len(labels) != count:
        raise ValueError(f"{path} holds {len(labels)} labels, but the mosaics have {count} tiles")
    if int(labels.max()) >= CLASSES:
        raise ValueError(f"{path} holds the label {int(labels.max())}; labels are 0 to {CLASSES - 1}")
    return labels


def find(folder: Path, name: str) -> Path:
    """The path of a file in the folder or in one of its two parts."""
    for part in PARTS:
        if (folder / part / name).is_file():
            return folder / part / name
    raise FileNotFoundError(f"{name} is neither in {folder} nor in its folders part1 and part2")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder with the mosaics, or with part1 and part2")
    parser.add_argument("out", type=Path, help=f"the folder in which {WRITTEN} is written")
    options = parser.parse_args(arguments)
    print(convert(options.folder, options.out))


if __name__ == "__main__":
    main()
