"""MobileNetV2 with torchvision's state_dict keys, so that its ImageNet weights load.

A block widens its input with a 1 x 1 convolution, filters each channel alone (depthwise), and narrows the result with a
1 x 1 convolution that no nonlinearity follows. `width` scales the number of channels of every layer.
"""

from torch import Tensor, nn

# One row per stage: expansion, output channels at width 1, blocks, stride of the first block (table 2 of the
# MobileNetV2 paper).
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_STEM_CHANNELS = 32
_HEAD_CHANNELS = 1280


class InvertedResidual(nn.Module):
    """Widen, filter depthwise, narrow; the input is added where the block changes neither size nor channels."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = in_channels * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers.append(_convolution(in_channels, hidden, kernel_size=1))
        layers += [
            _convolution(hidden, hidden, kernel_size=3, stride=stride, groups=hidden),
            nn.Conv2d(hidden, out_channels, kernel_size=1, bias=False),
            nn.BatchNorm2d(out_channels),
        ]
        self.conv = nn.Sequential(*layers)
        self.adds_input = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.adds_input else out


class MobileNetV2(nn.Module):
    """A stem, seventeen inverted residual blocks, a 1 x 1 convolution and a classifier. Returns logits."""

    def __init__(self, num_classes: int = 1000, width: float = 1.0) -> None:
        super().__init__()
        if width <= 0:
            raise ValueError(f"width must be positive, not {width}")
        channels = _multiple_of_8(_STEM_CHANNELS * width)
        layers: list[nn.Module] = [_convolution(3, channels, kernel_size=3, stride=2)]
        for expansion, stage_channels, blocks, first_stride in _STAGES:
            out_channels = _multiple_of_8(stage_channels * width)
            for index in range(blocks):
                stride = first_stride if index == 0 else 1
                layers.append(InvertedResidual(channels, out_channels, stride, expansion))
                channels = out_channels
        head_channels = _multiple_of_8(_HEAD_CHANNELS * max(1.0, width))  # a narrow network keeps its full head
        layers.append(_convolution(channels, head_channels, kernel_size=1))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(head_channels, num_classes))
        self._initialize()

    def _initialize(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.01)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        x = self.avgpool(self.features(images)).flatten(1)
        logits: Tensor = self.classifier(x)
        return logits


def _convolution(
    in_channels: int, out_channels: int, *, kernel_size: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding=kernel_size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU6(),
    )


def _multiple_of_8(channels: float) -> int:
    """The nearest multiple of 8, at least 8; the next one where the nearest would be more than a tenth too small."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8
