"""VGG-7 for 32 x 32 x 3 images (CIFAR-10), as in the Bayesian Bits paper:
2x(128C3) - MP2 - 2x(256C3) - MP2 - 2x(512C3) - MP2 - 1024FC - Softmax, ReLU, batch norm for every layer but the last.

The convolutions pad by one, so that only the pooling shrinks the image. A layer before a
batch norm has no bias: the shift of the batch norm takes its place.
"""

from torch import Tensor, nn


class VGG7(nn.Module):
    """Six convolutions and two linear layers. Returns logits."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_convolution(3, 128),
            *_convolution(128, 128),
            nn.MaxPool2d(2),
            *_convolution(128, 256),
            *_convolution(256, 256),
            nn.MaxPool2d(2),
            *_convolution(256, 512),
            *_convolution(512, 512),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(512 * 4 * 4, 1024, bias=False),
            nn.BatchNorm1d(1024),
            nn.ReLU(),
            nn.Linear(1024, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images))
        return logits


def _convolution(in_channels: int, out_channels: int) -> list[nn.Module]:
    return [
        nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
    ]
