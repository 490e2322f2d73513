"""The ResNets for CIFAR-10 of the original paper (He et al., 2015, section 4.2), of depth 6n + 2: 20, 32, 44, 56, ...

Three stages of n blocks with 16, 32 and 64 channels. Shortcuts have no parameters ("option A"): where a stage halves
the image and doubles the channels, the shortcut keeps every second pixel and adds channels of zeros on both sides.
State_dict keys are those of akamaster/pytorch_resnet_cifar10, whose trained weights expect images normalized with
ImageNet's mean and standard deviation.
"""

import torch.nn.functional as F
from torch import Tensor, nn


class ZeroPaddedShortcut(nn.Module):
    """Keeps every second pixel, and adds channels of zeros, half of them before and half after the input's channels."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.padding = (out_channels - in_channels) // 2

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.padding, self.padding))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut; stride 2 where the number of channels changes."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        narrows = in_channels != channels
        self.conv1 = nn.Conv2d(in_channels, channels, kernel_size=3, stride=2 if narrows else 1, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = ZeroPaddedShortcut(in_channels, channels) if narrows else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        result: Tensor = self.relu(out + self.shortcut(x))
        return result


class CifarResNet(nn.Module):
    """A 3 x 3 convolution, three stages of basic blocks, and a classifier. Returns logits."""

    def __init__(self, depth: int, num_classes: int = 10) -> None:
        super().__init__()
        if depth < 8 or depth % 6 != 2:
            raise ValueError(f"depth must be 6n + 2 (8, 14, 20, ...), not {depth}")
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        self.layer1 = _stage(blocks, 16, 16)
        self.layer2 = _stage(blocks, 16, 32)
        self.layer3 = _stage(blocks, 32, 64)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(64, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(images)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.linear(self.avgpool(x).flatten(1))
        return logits


def _stage(blocks: int, in_channels: int, channels: int) -> nn.Sequential:
    return nn.Sequential(
        BasicBlock(in_channels, channels), *[BasicBlock(channels, channels) for _ in range(blocks - 1)]
    )
