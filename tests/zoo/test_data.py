"""The zoo's small data sets: what the files hold arrives pixel for pixel, and a wrong file is named with its fault."""

import gzip
import os
import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bayesbits.zoo import data
from tests.zoo.data_files import (
    CIFAR_BATCHES,
    IDX_FILES,
    cifar_arrays,
    idx_bytes,
    labels_of,
    noise,
    pickled_batch,
    python2_batch,
    write_archive,
    write_batches,
    write_mnist,
    write_mosaics,
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
    "mosaics in parts": lambda folder, arrays: write_mosaics(folder, arrays, columns=3, parts=True),
    "mosaics beside each other": lambda folder, arrays: write_mosaics(folder, arrays, columns=2, parts=False),
}


@pytest.fixture(autouse=True)
def no_folder_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BAYESBITS_DATA", raising=False)


def refused(error: type[Exception], *parts: object) -> Any:
    """A check that `error` is raised with all of these parts in its message, in their order."""
    return pytest.raises(error, match="(?s)" + ".*".join(re.escape(str(part)) for part in parts))


# Digits


def test_digits_are_split_once_and_for_all_with_every_class_in_both_parts():
    digits = data.load("digits")
    assert digits.name == "digits"
    assert digits.train.images.shape == (1438, 1, 28, 28)
    assert digits.test.images.shape == (359, 1, 28, 28)
    assert digits.train.classes == digits.test.classes == 10
    train, test = digits.train.labels.bincount(), digits.test.labels.bincount()
    assert ((test / (train + test) - 0.2).abs() < 0.005).all()
    assert digits.test.labels[:12].tolist() == [5, 0, 8, 5, 8, 5, 8, 8, 0, 0, 0, 3]
    assert torch.equal(digits.train.images, data.load("digits", folder="nowhere").train.images)


def test_digits_are_all_there_at_their_own_size_with_black_and_white_at_the_ends():
    from sklearn.datasets import load_digits

    digits = data.load("digits", size=8)
    ours = torch.cat([digits.train.images, digits.test.images]).flatten(1)
    theirs = torch.from_numpy(load_digits().images * 255 / 16).round().to(torch.uint8).flatten(1)
    assert sorted(ours.tolist()) == sorted(theirs.tolist())
    assert (int(ours.min()), int(ours.max())) == (0, 255)


def test_digits_are_resized_between_pixel_centers():
    small, large = data.load("digits", size=8).train.images[0, 0], data.load("digits").train.images[0, 0]
    centers = ((np.arange(28) + 0.5) * 8 / 28 - 0.5).clip(0)
    below = np.floor(centers).astype(int)
    weights = np.zeros((28, 8))
    weights[np.arange(28), below] += 1 - (centers - below)
    weights[np.arange(28), (below + 1).clip(max=7)] += centers - below
    expected = weights @ small.numpy().astype(float) @ weights.T
    assert np.abs(large.numpy() - expected).max() <= 1  # the small image was rounded once more


# Statistics and normalization


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


def test_normalized_training_images_have_mean_0_and_deviation_1_in_every_channel(tmp_path: Path):
    CIFAR["mosaics in parts"](tmp_path, cifar_arrays())
    cifar = data.load("cifar10", tmp_path)
    images = data.normalize(cifar.train.images, cifar)
    assert images.dtype == torch.float32
    std, mean = torch.std_mean(images.double(), (0, 2, 3), correction=0)
    assert mean.abs().max() < 1e-6
    assert (std - 1).abs().max() < 1e-6
    exact = cifar.train.images.double() / 255 - torch.tensor(cifar.mean, dtype=torch.float64).view(3, 1, 1)
    exact /= torch.tensor(cifar.std, dtype=torch.float64).view(3, 1, 1)
    assert (images - exact).abs().max() < 1e-6
    assert torch.equal(data.normalize(cifar.train.images[3], cifar), images[3])


def test_a_channel_of_one_color_is_only_centered():
    split = data.Dataset(torch.full((2, 1, 3, 3), 51, dtype=torch.uint8), torch.tensor([0, 1]), 2)
    gray = data.Data(split, split, (0.2,), (0.0,), "gray")
    assert torch.equal(data.normalize(split.images, gray), torch.zeros(2, 1, 3, 3))


def test_normalize_refuses_what_was_normalized_and_other_channels():
    digits = data.load("digits", size=8)
    with refused(ValueError, "uint8", "torch.float32"):
        data.normalize(data.normalize(digits.test.images, digits), digits)
    with refused(ValueError, "3 channels", "statistics of 1"):
        data.normalize(digits.test.images.expand(-1, 3, -1, -1), digits)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 1, 4, 4), torch.tensor([0, 1]), "float32 [2, 1, 4, 4]"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), torch.tensor([0, 1]), "uint8 [2, 4, 4]"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0.0, 1.0]), "float32 [2]"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0]), "2 images do not fit 1 labels"),
        (torch.zeros(0, 1, 4, 4, dtype=torch.uint8), torch.tensor([], dtype=torch.int64), "without pixels"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 3]), "from 0 to 3; with 3 classes"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([-1, 0]), "from -1 to 0"),
    ],
)
def test_a_data_set_is_checked_when_it_is_made(images: Tensor, labels: Tensor, message: str):
    with refused(ValueError, message):
        data.Dataset(images, labels, classes=3)


def test_a_data_set_moves_to_a_device():
    test = data.load("digits", size=8).test
    assert len(test) == 359
    assert test.to("cpu").images.device.type == "cpu"


# Augmentation


@pytest.mark.parametrize(("padding", "flip"), [(4, True), (2, False), (0, True), (0, False)])
def test_augmented_images_are_crops_of_the_padded_ones(padding: int, flip: bool):
    images = torch.from_numpy(noise(40, 3, 7, 9))
    augmented = data.augment(images, torch.Generator().manual_seed(1), padding, flip)
    assert augmented.dtype == images.dtype
    assert augmented.shape == images.shape
    padded = F.pad(images, (padding,) * 4)
    seen = set()
    for before, after in zip(padded, augmented, strict=True):
        matches = [
            (upper, left, mirrored)
            for upper in range(2 * padding + 1)
            for left in range(2 * padding + 1)
            for mirrored in (False, True)
            if torch.equal(mirror(before[:, upper : upper + 7, left : left + 9], mirrored), after)
        ]
        assert len(matches) == 1
        seen.add(matches[0])
    assert {mirrored for _, _, mirrored in seen} == ({False, True} if flip else {False})
    assert len(seen) > 10 or padding == 0


def mirror(image: Tensor, mirrored: bool) -> Tensor:
    return image.flip(-1) if mirrored else image


def test_crops_and_mirrors_are_equally_likely():
    number, padding = 20_000, 1
    images = torch.arange(1.0, 10.0).view(1, 1, 3, 3).expand(number, -1, -1, -1)
    augmented = data.augment(images, torch.Generator().manual_seed(2), padding)
    # The corners tell which of the 9 crops and whether mirrored: 18 outcomes.
    _, counts = augmented.flatten(1).unique(dim=0, return_counts=True)
    assert len(counts) == 18
    assert (counts / number - 1 / 18).abs().max() < 5 * (1 / 18 / number) ** 0.5


def test_augmentation_repeats_with_a_generator_and_does_not_touch_its_input():
    images = torch.from_numpy(noise(16, 1, 8, 8))
    before = images.clone()
    first = data.augment(images, torch.Generator().manual_seed(3))
    assert torch.equal(first, data.augment(images, torch.Generator().manual_seed(3)))
    assert not torch.equal(first, data.augment(images, torch.Generator().manual_seed(4)))
    assert torch.equal(images, before)
    floats = data.augment(images.float(), torch.Generator().manual_seed(3))
    assert torch.equal(floats, first.float())


def test_augment_refuses_single_images_and_negative_padding():
    with refused(ValueError, "[N, C, H, W]", "[3, 8, 8]"):
        data.augment(torch.zeros(3, 8, 8))
    with refused(ValueError, "padding is -1"):
        data.augment(torch.zeros(1, 3, 8, 8), padding=-1)


# Where files are looked for


def test_unknown_names_and_options_are_refused():
    with refused(ValueError, "'svhn'", "digits, mnist, fashion_mnist, cifar10"):
        data.load("svhn")
    with refused(ValueError, "'mnist' has no option 'size'"):
        data.load("mnist", size=8)
    with refused(ValueError, "size is 0"):
        data.load("digits", size=0)


def test_the_folder_is_the_one_given_or_the_variables_or_data_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def first_pixels(folder: Path | None = None) -> list[int]:
        return data.load("mnist", folder).train.images[0, 0, 0].tolist()

    places = {name: tmp_path / name for name in ("given", "variable", "here")}
    pixels = {
        "given": write_mnist(places["given"], seed=10)[IDX_FILES[0]][0, 0].tolist(),
        "variable": write_mnist(places["variable"] / "mnist", seed=20)[IDX_FILES[0]][0, 0].tolist(),
        "here": write_mnist(places["here"] / "data" / "mnist", seed=30)[IDX_FILES[0]][0, 0].tolist(),
    }
    monkeypatch.chdir(places["here"])
    assert first_pixels() == pixels["here"]
    monkeypatch.setenv("BAYESBITS_DATA", str(places["variable"]))
    assert first_pixels() == pixels["variable"]
    assert first_pixels(places["given"]) == pixels["given"]


def test_fashion_mnist_is_not_taken_from_a_folder_of_mnist(tmp_path: Path):
    write_mnist(tmp_path / "mnist")
    assert len(data.load("mnist", tmp_path / "mnist").train) == 12
    with refused(FileNotFoundError, "'fashion_mnist' was not found", tmp_path / "mnist" / "fashion_mnist"):
        data.load("fashion_mnist", tmp_path / "mnist")


@pytest.mark.parametrize(
    ("name", "files", "published"),
    [
        ("mnist", IDX_FILES, "the MNIST database by LeCun, Cortes and Burges"),
        ("fashion_mnist", IDX_FILES, "Zalando Research"),
        ("cifar10", (*CIFAR_BATCHES, "cifar-10-python.tar.gz", "labels.u8"), "University of Toronto"),
    ],
)
def test_missing_data_says_what_is_expected_where_and_who_publishes_it(
    tmp_path: Path, name: str, files: tuple[str, ...], published: str
):
    expected = (tmp_path / name, "no such folder", tmp_path, "lacks", *files, published, "`folder`", "BAYESBITS_DATA")
    with refused(FileNotFoundError, *expected):
        data.load(name, tmp_path)


def test_a_folder_that_holds_some_of_the_files_is_told_which_it_lacks(tmp_path: Path):
    write_mnist(tmp_path)
    (tmp_path / f"{IDX_FILES[3]}.gz").unlink()
    with refused(FileNotFoundError, f"{tmp_path}: lacks {IDX_FILES[3]}\n"):
        data.load("mnist", tmp_path)
    CIFAR["mosaics in parts"](tmp_path / "cifar10", cifar_arrays())
    (tmp_path / "cifar10" / "part1" / "data_batch_2.webp").unlink()
    with refused(FileNotFoundError, f"{tmp_path / 'cifar10'}: lacks data_batch_2.webp\n"):
        data.load("cifar10", tmp_path)


# IDX files that are wrong


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


# CIFAR-10


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


def test_wrong_mosaics_are_named_with_what_is_wrong(tmp_path: Path):
    arrays = cifar_arrays()
    write_mosaics(tmp_path, arrays, columns=3, parts=False)
    labels = np.fromfile(tmp_path / "labels.u8", np.uint8)
    labels[:-1].tofile(tmp_path / "labels.u8")
    with refused(ValueError, tmp_path / "labels.u8", "35 labels", "30 training and 6 test tiles"):
        data.load("cifar10", tmp_path)
    (labels + 1).tofile(tmp_path / "labels.u8")
    with refused(ValueError, tmp_path / "labels.u8", "the label 10", "0 to 9"):
        data.load("cifar10", tmp_path)
    narrow = {name: (images[..., :31], numbers) for name, (images, numbers) in arrays.items()}
    write_mosaics(tmp_path, narrow, columns=3, parts=False)
    with refused(ValueError, tmp_path / "data_batch_1.webp", "64 x 93 pixels", "32 x 32 tiles"):
        data.load("cifar10", tmp_path)
    for content in ((tmp_path / "data_batch_1.webp").read_bytes()[:-50], b"not a picture"):
        (tmp_path / "data_batch_1.webp").write_bytes(content)
        with refused(ValueError, tmp_path / "data_batch_1.webp", "cannot be read as a picture"):
            data.load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("name", "module", "package"), [("digits", "sklearn", "scikit-learn"), ("cifar10", "PIL", "pillow")]
)
def test_a_package_that_is_not_installed_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, package: str
):
    CIFAR["mosaics in parts"](tmp_path, cifar_arrays())
    for loaded in [loaded for loaded in sys.modules if loaded == module or loaded.startswith(f"{module}.")]:
        monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.setitem(sys.modules, module, None)
    with refused(ImportError, package, 'pip install "bayesbits[data]"'):
        data.load(name, tmp_path)
