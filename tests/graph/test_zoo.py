"""The zoo's networks: which channel groups are removable, by name and count. What is left are inputs and logits."""

import pytest
import torch

from bayesbits.graph.trace import trace
from bayesbits.zoo import models


def resnet(blocks: tuple[int, ...], inner: tuple[str, ...], widths: tuple[int, ...], expansion: int) -> dict[str, int]:
    """A stream for each stage, named after its shortcut (the first after the stem), and the insides of every block."""
    groups = {"conv1": 64}
    for stage, (count, width) in enumerate(zip(blocks, widths, strict=True), start=1):
        if stage > 1 or expansion > 1:
            groups[f"layer{stage}.0.downsample.0"] = width * expansion
        groups |= {f"layer{stage}.{block}.{conv}": width for block in range(count) for conv in inner}
    return groups


def mobilenet() -> dict[str, int]:
    """The stem with the first depthwise filter, every expansion with its own, and a stream for each stage."""
    streams = {1: 16, 2: 24, 4: 32, 7: 64, 11: 96, 14: 160, 17: 320}
    groups, width = {"features.0.0": 32, "features.1.conv.1": 16}, 16
    for block in range(2, 18):
        groups[f"features.{block}.conv.0.0"] = 6 * width
        if block in streams:
            width = groups[f"features.{block}.conv.2"] = streams[block]
    return groups | {"features.18.0": 1280}


def cifar_resnet(blocks: int) -> dict[str, int]:
    """The padded shortcuts carry every stage's stream into the middle of the next, which adds channels around it."""
    groups = {"conv1": 16, "layer2.0.conv2": 16, "layer3.0.conv2": 32}
    for stage, width in ((1, 16), (2, 32), (3, 64)):
        groups |= {f"layer{stage}.{block}.conv1": width for block in range(blocks)}
    return groups


REMOVABLE = {
    "lenet5": {"features.0": 32, "features.3": 64, "classifier.1": 512},
    "vgg7": {
        "features.0": 128, "features.3": 128, "features.7": 256, "features.10": 256, "features.14": 512,
        "features.17": 512, "classifier.1": 1024,
    },
    "resnet18": resnet((2, 2, 2, 2), ("conv1",), (64, 128, 256, 512), 1),
    "resnet50": resnet((3, 4, 6, 3), ("conv1", "conv2"), (64, 128, 256, 512), 4),
    "mobilenetv2": mobilenet(),
    "resnet20": cifar_resnet(3),
    "resnet56": cifar_resnet(9),
}  # fmt: skip


@pytest.mark.parametrize("name", REMOVABLE)
def test_removable_groups(name: str) -> None:
    images = torch.randn(1, 1, 28, 28) if name == "lenet5" else torch.randn(1, 3, 32, 32)
    topology = trace(models.create(name), images)
    assert {group.name: group.size for group in topology.removable_groups} == REMOVABLE[name]
    assert {group.reason for group in topology.groups if not group.removable} == {
        "is a network input",
        "reaches the network's output",
    }
    assert not topology.unsupported
