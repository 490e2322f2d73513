"""LeNet-5 for 28 x 28 x 1 images (MNIST), as in the Bayesian Bits paper: 32C5 - MP2 - 64C5 - MP2 - 512FC - Softmax.

The paper does not give the padding. Here there is none, as in the Caffe LeNet: 28 -> 24 -> 12 -> 8 -> 4. The paper's
figure for TWN agrees: 2-bit weights, 32-bit activations and an 8-bit input cost 5.74% relative BOPs on this network
(4,267,008 MACs), and would cost 6.01% if the convolutions kept the image's size.
"""

from torch import Tensor, nn


class LeNet5(nn.Module):
    """Two convolutions and two linear layers, each with a bias; no batch norm. Returns logits."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 512),
            nn.ReLU(),
            nn.Linear(512, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images))
        return logits
