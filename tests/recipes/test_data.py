"""Batches for training, for watching and for the test."""

import pytest
import torch

from bayesbits import recipes
from bayesbits.recipes.data import first_batches, first_examples, inputs_of, open_data
from bayesbits.recipes.process import Process
from bayesbits.zoo import data as zoo
from tests.recipes.made_data import made_for

CPU = Process(torch.device("cpu"))


def config(name, *overrides):
    return recipes.load(name, overrides).data


def labels_of(loader):
    return torch.cat([labels for _, labels in loader])


def test_images_are_held_back_from_training_and_not_from_the_test():
    digits = zoo.load("digits")
    loaders = open_data(config("digits-lenet5", "data.validation=300"), CPU, seed=0)
    assert len(labels_of(loaders.train)) == len(digits.train) - 300
    assert len(labels_of(loaders.validation)) == 300
    assert labels_of(loaders.test).equal(digits.test.labels)
    every = torch.cat([labels_of(loaders.train), labels_of(loaders.validation)])
    assert every.bincount().equal(digits.train.labels.bincount())
    other = open_data(config("digits-lenet5", "data.validation=300"), CPU, seed=1)
    assert labels_of(other.validation).equal(labels_of(loaders.validation))
    assert not labels_of(other.train).equal(labels_of(loaders.train))
    assert open_data(config("digits-lenet5"), CPU, seed=0).validation is None


def test_photographs_are_held_back_too(tmp_path):
    overrides = [*made_for("imagenet-resnet18", tmp_path), "data.validation=2"]
    loaders = open_data(config("imagenet-resnet18", *overrides), CPU, seed=0)
    assert [len(labels_of(loader)) for loader in (loaders.train, loaders.validation, loaders.test)] == [4, 2, 6]
    images = [torch.cat([images for images, _ in loader]) for loader in (loaders.validation, loaders.validation)]
    assert images[0].equal(images[1])  # not cropped at random


def test_only_training_images_are_augmented(tmp_path):
    overrides = made_for("cifar10-vgg7", tmp_path)
    cifar = zoo.load("cifar10", tmp_path)
    loaders = open_data(config("cifar10-vgg7", *overrides), CPU, seed=0)
    [(test_images, _)] = loaders.test
    assert test_images.equal(zoo.normalize(cifar.test.images, cifar))
    [(images, labels)] = loaders.train
    plain = open_data(config("cifar10-vgg7", *overrides, "data.padding=0", "data.flip=false"), CPU, seed=0)
    [(plain_images, plain_labels)] = plain.train
    assert labels.equal(plain_labels)
    assert not images.equal(plain_images)


def test_images_that_are_not_standardized_go_from_black_to_white(tmp_path):
    digits = zoo.load("digits")
    loaders = open_data(config("digits-lenet5", "data.standardize=false"), CPU, seed=0)
    images = torch.cat([images for images, _ in loaders.test])
    torch.testing.assert_close(images, digits.test.images / 255)
    assert loaders.example.equal(digits.train.images[:1] / 255)
    photographs = open_data(
        config("imagenet-resnet18", *made_for("imagenet-resnet18", tmp_path), "data.standardize=false"), CPU, seed=0
    )
    assert all(images.min() >= 0 and images.max() <= 1 for images, _ in photographs.test)


def test_images_for_published_weights_have_the_statistics_of_imagenet(tmp_path):
    overrides = [*made_for("cifar10-vgg7", tmp_path), "data.standardize=imagenet"]
    cifar = zoo.load("cifar10", tmp_path)
    images = torch.cat([images for images, _ in open_data(config("cifar10-vgg7", *overrides), CPU, seed=0).test])
    pixels = cifar.test.images[:, 1] / 255
    torch.testing.assert_close(images[:, 1], (pixels - 0.456) / 0.224)
    with pytest.raises(ValueError, match="color images; these have 1 channel"):
        open_data(config("digits-lenet5", "data.standardize=imagenet"), CPU, seed=0)
    with pytest.raises(ValueError, match='True, False or "imagenet"'):
        config("digits-lenet5", "data.standardize=cifar")


def test_processes_share_a_batch():
    whole = next(iter(open_data(config("digits-lenet5"), CPU, seed=0).train))[1]
    parts = [
        next(iter(open_data(config("digits-lenet5"), Process(CPU.device, rank, 2), seed=0).train))[1]
        for rank in range(2)
    ]
    assert torch.cat(parts).equal(whole)
    with pytest.raises(ValueError, match="batch_size is 64; it must be shared by 3 processes"):
        open_data(config("digits-lenet5"), Process(CPU.device, 0, 3), seed=0)


@pytest.mark.parametrize(
    ("recipe", "overrides", "said"),
    [
        ("digits-lenet5", ["data.name=digit"], "data.name is 'digit'; it is one of digits, mnist"),
        ("digits-lenet5", ["data.validation=1438"], "there are only 1438 training images"),
        ("digits-lenet5", ["data.options.color=1"], "has no option 'color'"),
        ("imagenet-resnet18", [], "data.folder is missing.*--set data.folder"),
        ("imagenet-resnet18", ["data.folder=x", "data.flip=true"], "cropped and mirrored anyway"),
    ],
)
def test_data_that_cannot_be_had_are_refused(recipe, overrides, said):
    with pytest.raises(ValueError, match=said):
        open_data(config(recipe, *overrides), CPU, seed=0)


def test_missing_files_say_where_they_were_looked_for_and_how_to_say_where_they_are(tmp_path):
    with pytest.raises(FileNotFoundError, match="'mnist' was not found") as caught:
        open_data(config("mnist-lenet5", f"data.folder={tmp_path / 'nowhere'}"), CPU, seed=0)
    assert str(tmp_path / "nowhere") in str(caught.value)
    assert "--set data.folder=FOLDER" in caught.value.__notes__[0]


def test_the_first_examples_are_cut_from_batches_of_any_structure():
    batches = [(x, {"mask": x + 10, "scale": 2.0}) for x in (torch.arange(4), torch.arange(4, 8))]
    taken = first_batches(batches, 6)
    assert [batch[0].tolist() for batch in taken] == [[0, 1, 2, 3], [4, 5]]
    assert [batch[1]["mask"].tolist() for batch in taken] == [[10, 11, 12, 13], [14, 15]]
    assert len(first_batches(batches, 4)) == 1
    inputs, options = first_examples(batches, 5)
    assert inputs.tolist() == [0, 1, 2, 3, 4]
    assert options["scale"] == 2.0
    with pytest.raises(ValueError, match="the loader gave no batches"):
        first_examples([], 5)


def test_inputs_are_told_from_labels():
    x, y = torch.zeros(2), torch.ones(2)
    assert inputs_of((x, y)) is x
    assert inputs_of([x]) is x
    assert inputs_of(x) is x
    assert inputs_of({"x": x, "y": y}) == {"x": x, "y": y}
