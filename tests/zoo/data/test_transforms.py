"""Transforms: statistics and normalization to the last digit, and augmentation as crops of the padded images."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bayesbits.zoo import data
from bayesbits.zoo.data.transforms import mean_and_std
from tests.zoo.data_files import cifar_arrays, noise, pickled_batch, refused, write_batches


def test_mean_and_deviation_by_hand():
    images = torch.tensor([[[[0, 255]], [[51, 51]]]], dtype=torch.uint8)  # one image, two channels of two pixels
    assert mean_and_std(images) == ((0.5, 0.2), (0.5, 0.0))


def test_normalized_training_images_have_mean_0_and_deviation_1_in_every_channel(tmp_path: Path):
    write_batches(tmp_path, {name: pickled_batch(*content) for name, content in cifar_arrays().items()})
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
