"""CIFAR-10 arrives pixel for pixel in every form, and a wrong file is named with its fault and never run."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesbits.zoo import data
from tests.zoo.data_files import (
    CIFAR_BATCHES,
    cifar_arrays,
    labels_of,
    noise,
    pickled_batch,
    python2_batch,
    refused,
    write_archive,
    write_batches,
)

CIFAR = {
    "batches of Python 2": lambda folder, arrays: write_batches(
        folder / "cifar-10-batches-py", {name: python2_batch(*arrays[name]) for name in arrays}
    ),
    "batches beside each other": lambda folder, arrays: write_batches(
        folder, {name: pickled_batch(*arrays[name]) for name in arrays}
    ),
    "batches of a later Python": lambda folder, arrays: write_batches(
        folder, {name: pickled_batch(*arrays[name], protocol=5) for name in arrays}
    ),
    "archive": lambda folder, arrays: write_archive(
        folder / "cifar-10-python.tar.gz", {name: python2_batch(*arrays[name]) for name in arrays}
    ),
}


@pytest.mark.parametrize("form", CIFAR)
@pytest.mark.parametrize("under", ["", "cifar10"])
def test_cifar10_arrives_pixel_for_pixel_in_every_form(tmp_path: Path, form: str, under: str):
    arrays = cifar_arrays()
    CIFAR[form](tmp_path / under, arrays)
    cifar = data.load("cifar10", tmp_path)
    train = [arrays[name] for name in CIFAR_BATCHES[:5]]
    assert np.array_equal(cifar.train.images.numpy(), np.concatenate([images for images, _ in train]))
    assert np.array_equal(cifar.train.labels.numpy(), np.concatenate([labels for _, labels in train]))
    assert np.array_equal(cifar.test.images.numpy(), arrays["test_batch"][0])
    assert np.array_equal(cifar.test.labels.numpy(), arrays["test_batch"][1])
    pixels = cifar.train.images.numpy() / 255
    assert cifar.mean == pytest.approx(pixels.mean((0, 2, 3)), rel=1e-12)
    assert cifar.std == pytest.approx(pixels.std((0, 2, 3)), rel=1e-12)


class Touches:
    """A pickle of this runs a function when it is loaded."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_that_would_run_code_is_refused_by_name_and_not_run(tmp_path: Path, archived: bool, protocol: int):
    payload = tmp_path / "payload-ran"
    batches = {name: pickled_batch(*content) for name, content in cifar_arrays().items()}
    batches["data_batch_3"] = pickle.dumps({b"data": Touches(os.mkdir, str(payload))}, protocol=protocol)
    if archived:
        write_archive(tmp_path / "cifar-10-python.tar.gz", batches)
    else:
        write_batches(tmp_path, batches)
    with refused(ValueError, "data_batch_3", "was refused", "mkdir"):
        data.load("cifar10", tmp_path)
    assert not payload.exists()
    pickle.loads(batches["data_batch_3"])
    assert payload.exists(), "the payload does nothing, so that the test shows nothing"


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        (pickle.dumps({b"data": Touches(eval, "1 + 1")}), ("refused", "builtins.eval")),
        (pickle.dumps({b"data": Touches(getattr, "a", "upper")}), ("refused", "builtins.getattr")),
        (b"cnumpy\nload\n.", ("refused", "numpy.load")),
        (b"cnumpy.core.multiarray\n_reconstruct.__globals__\n.", ("refused", "_reconstruct.__globals__")),
        (b"c_codecs\nencode\n(X\x01\0\0\0aX\x05\0\0\0utf-8tR.", ("refused", "'utf-8'")),
        (b"Pelsewhere\n.", ("refused", "elsewhere")),
        (pickle.dumps({b"data": noise(6, 3072).astype(np.int64)}), ("refused", "'i8'", "'u1'")),
        (pickle.dumps({b"data": np.array([None])}), ("refused", "'O8'")),
        (pickled_batch(*cifar_arrays()["test_batch"])[:-100], ("truncated or damaged",)),
        (b"", ("truncated or damaged",)),
        (b"not a pickle", ("truncated or damaged",)),
        (b"cnumpy\ndtype\nN}X\x01\0\0\0ab.", ("truncated or damaged",)),
        (pickle.dumps([1, 2]), ("an object of type list", "a dictionary")),
        (pickle.dumps({b"labels": [1]}), ("has no 'data'", "b'labels'")),
        (pickle.dumps({b"data": noise(6, 3072)}), ("has no 'labels'", "b'data'")),
        (pickle.dumps({b"data": [1], b"labels": [1]}), ("no array", "N x 3072")),
        (pickle.dumps({b"data": noise(6, 784), b"labels": [1] * 6}), ("an array of 6 x 784", "N x 3072")),
        (pickle.dumps({b"data": noise(6, 3072), b"labels": [1] * 5}), ("6 images but 5 labels",)),
        (pickle.dumps({b"data": noise(6, 3072), b"labels": b"123456"}), ("labels of type bytes",)),
        (pickle.dumps({b"data": noise(6, 3072), b"labels": [1, 2, 3, 4, 5, 10]}), ("the label 10", "0 to 9")),
        (pickle.dumps({b"data": noise(6, 3072), b"labels": [1, 2, 3, 4, 5, "a"]}), ("the label 'a'",)),
        (python2_batch(noise(6, 3072), labels_of(6)).replace(b"J\0\x0c\0\0", b"J\0\x0d\0\0"), ("refused", "(6, 3328)")),
    ],
)
def test_wrong_batches_are_named_with_what_is_wrong(tmp_path: Path, content: bytes, messages: tuple[str, ...]):
    batches = {name: pickled_batch(*arrays) for name, arrays in cifar_arrays().items()}
    write_batches(tmp_path, batches | {"data_batch_4": content})
    with refused(ValueError, tmp_path / "data_batch_4", *messages):
        data.load("cifar10", tmp_path)


def test_arrays_in_a_pickle_keep_their_order_of_elements(tmp_path: Path):
    images, labels = cifar_arrays()["test_batch"]
    turned = pickle.dumps({b"data": np.asfortranarray(images.reshape(6, -1)), b"labels": labels.tolist()}, protocol=4)
    write_batches(tmp_path, dict.fromkeys(CIFAR_BATCHES, turned))
    assert np.array_equal(data.load("cifar10", tmp_path).test.images.numpy(), images)


def test_wrong_archives_are_named_with_what_is_wrong(tmp_path: Path):
    path = tmp_path / "cifar-10-python.tar.gz"
    batches = {name: pickled_batch(*content) for name, content in cifar_arrays().items()}
    write_archive(path, {name: batches[name] for name in CIFAR_BATCHES if name != "data_batch_5"})
    with refused(ValueError, path, "holds no data_batch_5"):
        data.load("cifar10", tmp_path)
    write_archive(path, batches)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"not an archive", b""):
        path.write_bytes(content)
        with refused(ValueError, path, "is truncated or damaged"):
            data.load("cifar10", tmp_path)
