"""IDX files arrive pixel for pixel, and a wrong one is named with its fault."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from bayesbits.zoo import data
from tests.zoo.data_files import IDX_FILES, idx_bytes, labels_of, noise, refused, write_mnist


@pytest.mark.parametrize("packed", [True, False], ids=["gz", "unpacked"])
def test_idx_files_arrive_pixel_for_pixel_with_their_statistics(tmp_path: Path, packed: bool):
    content = write_mnist(tmp_path / "mnist", packed)
    mnist = data.load("mnist", tmp_path)
    pixels = content[IDX_FILES[0]] / 255
    assert np.array_equal(mnist.train.images[:, 0].numpy(), content[IDX_FILES[0]])
    assert np.array_equal(mnist.train.labels.numpy(), content[IDX_FILES[1]])
    assert np.array_equal(mnist.test.images[:, 0].numpy(), content[IDX_FILES[2]])
    assert np.array_equal(mnist.test.labels.numpy(), content[IDX_FILES[3]])
    assert mnist.mean == pytest.approx((pixels.mean(),), rel=1e-12)
    assert mnist.std == pytest.approx((pixels.std(),), rel=1e-12)


@pytest.mark.parametrize(
    ("file", "content", "messages"),
    [
        (0, b"", ("is not an IDX file", "(none)")),
        (0, b"P5 28 28", ("is not an IDX file", "50 35 20 32")),
        (0, b"\0\0\x0d\x01" + bytes(8), ("type 0x0d", "0x08")),
        (0, b"\0\0\x08\x03" + bytes(8), ("ends within its header",)),
        (0, idx_bytes(noise(12, 28, 28))[:-1], ("is truncated", "12 x 28 x 28 = 9408 bytes", "9407 follow")),
        (0, idx_bytes(noise(12, 28, 28)) + b"x", ("is too long", "9409 follow")),
        (0, idx_bytes(noise(0, 28, 28)), ("is empty", "0 x 28 x 28")),
        (0, idx_bytes(noise(12, 32, 32)), ("12 x 32 x 32", "expected N x 28 x 28")),
        (0, idx_bytes(labels_of(12)), ("array of 12", "expected N x 28 x 28")),
        (0, idx_bytes(noise(11, 28, 28)), ("11 images", "12 labels")),
        (1, idx_bytes(noise(12, 28, 28)), ("12 x 28 x 28", "expected N labels")),
        (1, idx_bytes(labels_of(11)), ("12 images", "11 labels")),
        (1, idx_bytes(labels_of(12) + 1), ("the label 10", "0 to 9")),
        (3, gzip.compress(idx_bytes(labels_of(5)), mtime=0)[:-9], ("is truncated or damaged",)),
        (3, gzip.compress(idx_bytes(labels_of(5)), mtime=0)[:-4] + bytes(4), ("is truncated or damaged",)),
        (3, gzip.compress(idx_bytes(labels_of(5)), mtime=0)[:12] + b"\xff" * 20, ("is truncated or damaged",)),
    ],
)
def test_wrong_idx_files_are_named_with_what_is_wrong(
    tmp_path: Path, file: int, content: bytes, messages: tuple[str, ...]
):
    write_mnist(tmp_path)
    (tmp_path / f"{IDX_FILES[file]}.gz").write_bytes(content)
    with refused(ValueError, *messages) as caught:
        data.load("mnist", tmp_path)
    assert str(tmp_path / IDX_FILES[file]) in str(caught.value)
