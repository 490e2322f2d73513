"""The ResNets for CIFAR-10: depth, shortcut, and the keys of the published weights."""

import pytest
import torch

from bayesbits.zoo import models
from tests.zoo.models.networks import batch_norm_keys, on_meta


@pytest.mark.parametrize("depth", [2, 18, 21])
def test_a_cifar_resnet_of_impossible_depth_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match=r"6n \+ 2"):
        models.CifarResNet(depth)


@pytest.mark.parametrize(("name", "blocks"), [("resnet20", 3), ("resnet32", 5), ("resnet44", 7), ("resnet56", 9)])
def test_cifar_resnet_keys_are_akamasters(name: str, blocks: int) -> None:
    expected = ["conv1.weight", *batch_norm_keys("bn1")]
    for stage in (1, 2, 3):
        for block in range(blocks):
            for index in (1, 2):
                prefix = f"layer{stage}.{block}"
                expected += [f"{prefix}.conv{index}.weight", *batch_norm_keys(f"{prefix}.bn{index}")]
    expected += ["linear.weight", "linear.bias"]
    assert list(on_meta(name).state_dict()) == expected


def test_the_cifar_shortcut_keeps_every_second_pixel_between_zero_channels() -> None:
    images = torch.randn(2, 16, 8, 8)
    shortcut = models.create("resnet20").get_submodule("layer2.0.shortcut")(images)
    assert shortcut.shape == (2, 32, 4, 4)
    assert torch.equal(shortcut[:, 8:24], images[:, :, ::2, ::2])
    assert shortcut[:, :8].count_nonzero() == 0
    assert shortcut[:, 24:].count_nonzero() == 0
