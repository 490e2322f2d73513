"""ResNet-18 and ResNet-50 with torchvision's state_dict keys, so that its ImageNet weights load.

As in torchvision, the stride of a bottleneck sits on its 3 x 3 convolution ("v1.5"), and each block has one ReLU module
that it calls more than once. `stem="cifar"` is for 32 x 32 images: a 3 x 3 first convolution of stride 1, no max-pool.
"""

from typing import ClassVar, Literal

from torch import Tensor, nn

Stem = Literal["imagenet", "cifar"]


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    expansion: ClassVar[int] = 1

    def __init__(self, in_channels: int, channels: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        result: Tensor = self.relu(out + shortcut)
        return result


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut; the last has four times the channels."""

    expansion: ClassVar[int] = 4

    def __init__(self, in_channels: int, channels: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        out_channels = channels * self.expansion
        self.conv1 = nn.Conv2d(in_channels, channels, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, out_channels, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU()
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        result: Tensor = self.relu(out + shortcut)
        return result


class ResNet(nn.Module):
    """A stem, four stages of residual blocks with 64, 128, 256 and 512 channels, and a classifier. Returns logits."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        blocks_per_stage: tuple[int, int, int, int],
        num_classes: int = 1000,
        stem: Stem = "imagenet",
    ) -> None:
        super().__init__()
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
            maxpool: nn.Module = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        elif stem == "cifar":
            self.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)
            maxpool = nn.Identity()
        else:
            raise ValueError(f"stem must be 'imagenet' or 'cifar', not {stem!r}")
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = maxpool
        expansion = block.expansion
        self.layer1 = _stage(block, blocks_per_stage[0], 64, 64, stride=1)
        self.layer2 = _stage(block, blocks_per_stage[1], 64 * expansion, 128, stride=2)
        self.layer3 = _stage(block, blocks_per_stage[2], 128 * expansion, 256, stride=2)
        self.layer4 = _stage(block, blocks_per_stage[3], 256 * expansion, 512, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * expansion, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


def _stage(
    block: type[BasicBlock] | type[Bottleneck], blocks: int, in_channels: int, channels: int, stride: int
) -> nn.Sequential:
    out_channels = channels * block.expansion
    downsample = None
    if stride != 1 or in_channels != out_channels:
        downsample = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False),
            nn.BatchNorm2d(out_channels),
        )
    first = block(in_channels, channels, stride, downsample)
    rest = [block(out_channels, channels, 1, None) for _ in range(blocks - 1)]
    return nn.Sequential(first, *rest)


def resnet18(num_classes: int = 1000, stem: Stem = "imagenet") -> ResNet:
    """Eight basic blocks."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes, stem)


def resnet50(num_classes: int = 1000, stem: Stem = "imagenet") -> ResNet:
    """Sixteen bottlenecks."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes, stem)
