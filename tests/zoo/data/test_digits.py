"""The digits of scikit-learn: their split, their size and their shades."""

import sys

import numpy as np
import pytest
import torch

from bayesbits.zoo import data
from tests.zoo.data_files import refused


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


def test_digits_have_at_least_one_pixel():
    with refused(ValueError, "size is 0"):
        data.load("digits", size=0)


def test_digits_ask_for_scikit_learn_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    for loaded in [loaded for loaded in sys.modules if loaded == "sklearn" or loaded.startswith("sklearn.")]:
        monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with refused(ImportError, "scikit-learn", 'pip install "bayesbits[data]"'):
        data.load("digits")
