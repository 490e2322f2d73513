"""Photographs in folders: classes, crops pixel for pixel, and what is wrong with a folder said by name."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from bayesbits.zoo import data
from bayesbits.zoo.data.image_folder import random_box
from tests.zoo.data_files import noise, refused, write_pictures


def gradient(height: int, width: int) -> np.ndarray:
    """A picture that brightens from left to right, wherever it is cut."""
    row = np.linspace(0, 255, width).astype(np.uint8)
    return np.broadcast_to(row[None, :, None], (height, width, 3)).copy()


def test_classes_are_numbered_by_the_sorted_names_of_their_folders(tmp_path: Path):
    picture = noise(8, 8, 3)
    names = [
        "n02/b.png",
        "n02/a.PNG",
        "n10/deep/c.png",
        "n01/d.jpg",
        "n01/.hidden.png",
        "n01/.cache/e.png",
        ".git/f.png",
    ]
    write_pictures(tmp_path, dict.fromkeys(names, picture))
    (tmp_path / "n01" / "notes.txt").write_text("no picture")
    (tmp_path / "synsets.txt").write_text("no class")
    folder = data.ImageFolder(tmp_path, size=7)
    assert folder.class_names == ("n01", "n02", "n10")
    assert folder.classes == 3
    assert [Path(path).relative_to(tmp_path).as_posix() for path in folder.paths] == [
        "n01/d.jpg",
        "n02/a.PNG",
        "n02/b.png",
        "n10/deep/c.png",
    ]
    assert len(folder) == 4
    assert [label for _, label in folder] == folder.labels.tolist() == [0, 1, 1, 2]


def test_the_middle_of_a_picture_that_has_the_right_size_is_taken_as_it_is(tmp_path: Path):
    picture = noise(16, 21, 3)  # the shorter side is 256/224 of 14
    write_pictures(tmp_path, {"a/picture.png": picture})
    image, label = data.ImageFolder(tmp_path, size=14)[0]
    assert label == 0
    assert image.dtype == torch.uint8
    assert np.array_equal(image.numpy(), picture[1:15, 4:18].transpose(2, 0, 1))


@pytest.mark.parametrize(("height", "width", "resized"), [(48, 37, (16, 20)), (11, 64, (93, 16)), (16, 16, (16, 16))])
def test_the_shorter_side_is_resized_and_the_middle_cut_out(
    tmp_path: Path, height: int, width: int, resized: tuple[int, int]
):
    picture = noise(height, width, 3)
    write_pictures(tmp_path, {"a/picture.png": picture})
    image, _ = data.ImageFolder(tmp_path, size=14)[0]
    whole = np.asarray(Image.fromarray(picture).resize(resized, Image.Resampling.BILINEAR))
    upper, left = round((resized[1] - 14) / 2), round((resized[0] - 14) / 2)
    assert np.array_equal(image.numpy(), whole[upper : upper + 14, left : left + 14].transpose(2, 0, 1))


def test_training_images_are_the_drawn_box_resized_and_mirrored_half_the_time(tmp_path: Path):
    picture = gradient(40, 60)
    write_pictures(tmp_path, {"a/picture.png": picture})
    folder = data.ImageFolder(tmp_path, size=16, train=True)
    mirrored = 0
    torch.manual_seed(0)
    for seed in range(200):
        torch.manual_seed(seed)
        image = folder[0][0].numpy().transpose(1, 2, 0)
        torch.manual_seed(seed)
        left, upper, right, lower = random_box(60, 40)
        cut = Image.fromarray(picture[upper:lower, left:right]).resize((16, 16), Image.Resampling.BILINEAR)
        is_mirrored = bool(image[0, 0, 0] > image[0, -1, 0])
        assert np.array_equal(image[:, ::-1] if is_mirrored else image, np.asarray(cut))
        mirrored += is_mirrored
    assert 70 < mirrored < 130


def test_random_boxes_have_every_area_and_shape_that_is_allowed():
    torch.manual_seed(0)
    boxes = [random_box(300, 200) for _ in range(2000)]
    areas = np.array([(right - left) * (lower - upper) / 60_000 for left, upper, right, lower in boxes])
    shapes = np.array([(right - left) / (lower - upper) for left, upper, right, lower in boxes])
    assert all(0 <= left < right <= 300 and 0 <= upper < lower <= 200 for left, upper, right, lower in boxes)
    assert 0.078 < areas.min() < 0.1
    assert areas.max() > 0.8
    assert 0.74 < shapes.min() < 0.77
    assert 1.31 < shapes.max() < 1.35
    assert {box[0] == 0 for box in boxes} == {True, False}


@pytest.mark.parametrize("size", [(1000, 2), (2, 1000), (1, 1), (1, 50)])
def test_random_boxes_fit_pictures_of_any_shape(size: tuple[int, int]):
    torch.manual_seed(0)
    for _ in range(50):
        left, upper, right, lower = random_box(*size)
        assert 0 <= left < right <= size[0]
        assert 0 <= upper < lower <= size[1]


def test_gray_and_transparent_pictures_become_red_green_and_blue(tmp_path: Path):
    gray, transparent = noise(8, 8), noise(8, 8, 4)
    write_pictures(tmp_path, {"a/gray.png": gray, "a/transparent.png": transparent})
    folder = data.ImageFolder(tmp_path, size=7)
    assert np.array_equal(folder[0][0].numpy(), np.broadcast_to(gray[:7, :7], (3, 7, 7)))
    assert np.array_equal(folder[1][0].numpy(), transparent[:7, :7, :3].transpose(2, 0, 1))


def test_folders_of_training_and_validation_feed_a_loader_and_are_normalized(tmp_path: Path):
    names = [f"{split}/{label}/{number}.jpg" for split in ("train", "val") for label in "ab" for number in range(3)]
    write_pictures(tmp_path, {name: noise(20, 30, 3, seed=seed) for seed, name in enumerate(names)})
    folders = data.image_folder(tmp_path, size=14)
    assert (folders.train.train, folders.test.train) == (True, False)
    assert folders.name == tmp_path.name
    images, labels = next(iter(DataLoader(folders.test, batch_size=6)))
    assert images.shape == (6, 3, 14, 14)
    assert labels.tolist() == [0, 0, 0, 1, 1, 1]
    normalized = data.normalize(images, folders)
    assert torch.equal(normalized, data.normalize(images, folders.train))
    assert torch.allclose(normalized[:, 1], (images[:, 1] / 255 - 0.456) / 0.224, atol=1e-5)


def test_different_classes_in_training_and_validation_are_refused(tmp_path: Path):
    write_pictures(tmp_path, dict.fromkeys(["train/a/1.png", "train/b/1.png", "val/a/1.png"], noise(8, 8, 3)))
    with pytest.raises(ValueError, match=re.escape(f"'b' is only in {tmp_path / 'train'}")):
        data.image_folder(tmp_path)


def test_what_is_wrong_with_a_folder_is_said(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=re.escape(f"{tmp_path / 'nowhere'} is not a folder")):
        data.ImageFolder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path} has no classes")):
        data.ImageFolder(tmp_path)
    write_pictures(tmp_path, {"full/1.png": noise(8, 8, 3)})
    with pytest.raises(ValueError, match="size is 0"):
        data.ImageFolder(tmp_path, size=0)
    (tmp_path / "empty").mkdir()
    with pytest.warns(UserWarning, match=re.escape(f"{tmp_path / 'empty'} holds no pictures")):
        folder = data.ImageFolder(tmp_path)
    assert (folder.class_names, folder.labels.tolist()) == (("empty", "full"), [1])
    (tmp_path / "full" / "1.png").unlink()
    with (
        pytest.warns(UserWarning, match="holds no pictures"),
        pytest.raises(ValueError, match=re.escape(f"no pictures in the class folders of {tmp_path}")),
    ):
        data.ImageFolder(tmp_path)


@pytest.mark.parametrize("damage", [lambda content: content[:-40], lambda content: b"no picture", lambda content: b""])
def test_a_file_that_cannot_be_read_is_named_when_it_is_asked_for(tmp_path: Path, damage):
    write_pictures(tmp_path, {"a/good.png": noise(8, 8, 3), "a/wrong.png": noise(8, 8, 3)})
    path = tmp_path / "a" / "wrong.png"
    path.write_bytes(damage(path.read_bytes()))
    folder = data.ImageFolder(tmp_path, size=7)
    assert folder[0][0].shape == (3, 7, 7)
    with pytest.raises(ValueError, match=re.escape(f"{path} cannot be read as a picture")):
        folder[1]


def test_reading_asks_for_pillow_where_it_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_pictures(tmp_path, {"a/picture.png": noise(8, 8, 3)})
    folder = data.ImageFolder(tmp_path, size=7)
    for loaded in [loaded for loaded in sys.modules if loaded == "PIL" or loaded.startswith("PIL.")]:
        monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with refused(ImportError, "pillow", 'pip install "bayesbits[data]"'):
        folder[0]
