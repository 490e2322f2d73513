"""DeviceLoader: the same batches wherever an epoch is entered, and the same for several processes as for one."""

import pytest
import torch

import bayesbits as bb
from tests.training.problems import Labeled, data, noisy


def batches(loader, epoch=0, first=0):
    loader.set_epoch(epoch)
    return list(loader.batches_from(first))


def test_an_epoch_has_every_image_once_and_another_epoch_another_order():
    loader = bb.DeviceLoader(data(), 12)
    first, second = ([labels for _, labels in batches(loader, epoch)] for epoch in (0, 1))
    assert [len(labels) for labels in first] == [12, 12, 12, 8]
    images = torch.cat([images for images, _ in batches(loader)])
    assert torch.equal(images.flatten(1).sum(1).sort()[0], data().images.flatten(1).sum(1).sort()[0])
    assert not torch.equal(torch.cat(first), torch.cat(second))
    assert torch.equal(torch.cat(first), torch.cat([labels for _, labels in batches(loader, 0)]))


def test_images_keep_their_labels():
    entry = Labeled(torch.arange(10).view(10, 1), torch.arange(10))
    for images, labels in bb.DeviceLoader(entry, 3):
        assert torch.equal(images[:, 0], labels)


def test_without_shuffling_the_order_is_that_of_the_data():
    assert torch.equal(torch.cat([labels for _, labels in bb.DeviceLoader(data(), 12, shuffle=False)]), data().labels)


def test_batches_are_the_same_without_those_before_them():
    loader = bb.DeviceLoader(data(), 12, transform=noisy)
    whole = batches(loader, 2)
    for first in range(5):
        for one, other in zip(whole[first:], batches(loader, 2, first), strict=True):
            assert torch.equal(one[0], other[0])
            assert torch.equal(one[1], other[1])


def test_augmentation_differs_by_epoch_batch_and_seed():
    entry = Labeled(torch.zeros(24, 1, 5, 5), torch.zeros(24))
    drawn = [images for epoch in (0, 1) for images, _ in batches(bb.DeviceLoader(entry, 12, transform=noisy), epoch)]
    drawn += [images for images, _ in batches(bb.DeviceLoader(entry, 12, transform=noisy, seed=1))]
    for index, one in enumerate(drawn):
        assert all(not torch.equal(one, other) for other in drawn[:index])


@pytest.mark.parametrize("world", [2, 3])
def test_several_processes_see_together_what_one_with_the_larger_batch_sees(world):
    whole = batches(bb.DeviceLoader(data(), 4 * world, transform=noisy), 1)
    ranks = [
        batches(bb.DeviceLoader(data(), 4, transform=noisy, rank=rank, world_size=world), 1) for rank in range(world)
    ]
    assert len({len(own) for own in ranks}) == 1
    for parts, (images, labels) in zip(zip(*ranks, strict=True), whole, strict=True):
        share = len(images) // world
        assert all(len(labels) == share for _, labels in parts)
        # What the processes cannot share equally is left out; noise is drawn for what they can.
        assert torch.equal(torch.cat([labels for _, labels in parts]), labels[: share * world])
        if share * world == len(images):
            assert torch.equal(torch.cat([images for images, _ in parts]), images)


def test_the_last_small_batch_can_be_dropped_and_lengths_are_true():
    for world in (1, 2, 3):
        for drop in (False, True):
            loader = bb.DeviceLoader(data(), 6, drop_last=drop, rank=world - 1, world_size=world)
            assert len(loader) == len(list(loader))
            assert not drop or all(len(labels) == 6 for _, labels in loader)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="44 images do not fit 3 labels"):
        bb.DeviceLoader(Labeled(data().images, torch.zeros(3)), 4)
    with pytest.raises(ValueError, match="batch_size is 0"):
        bb.DeviceLoader(data(), 0)
    with pytest.raises(ValueError, match="rank is 2 of 2"):
        bb.DeviceLoader(data(), 4, rank=2, world_size=2)
    with pytest.raises(ValueError, match="44 images make no batch of 45"):
        bb.DeviceLoader(data(), 45, drop_last=True)
