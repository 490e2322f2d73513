"""Where files are looked for, and what is said where they are not."""

from pathlib import Path

import pytest

from bayesbits.zoo import data
from tests.zoo.data_files import (
    CIFAR_BATCHES,
    IDX_FILES,
    cifar_arrays,
    pickled_batch,
    refused,
    write_batches,
    write_mnist,
)


def test_unknown_names_and_options_are_refused():
    with refused(ValueError, "'svhn'", "digits, mnist, fashion_mnist, cifar10"):
        data.load("svhn")
    with refused(ValueError, "'mnist' has no option 'size'"):
        data.load("mnist", size=8)


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
        ("cifar10", (*CIFAR_BATCHES, "cifar-10-python.tar.gz"), "University of Toronto"),
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
    batches = {name: pickled_batch(*content) for name, content in cifar_arrays().items() if name != "data_batch_2"}
    write_batches(tmp_path / "cifar10", batches)
    with refused(FileNotFoundError, f"{tmp_path / 'cifar10'}: lacks data_batch_2\n"):
        data.load("cifar10", tmp_path)
