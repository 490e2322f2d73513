"""Compress a network in your own training loop, then write a file for onnxruntime and prove it equal.

python examples/own_training_loop.py FOLDER
"""

import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import bayesbits as bb

MU = 0.03  # the weight of the penalty: more of it, fewer bits
LR = {"weights": 1e-3, "gates": 6e-2, "ranges": 1e-3}


def make_network() -> nn.Module:
    """A convolutional network for images of 8 x 8 pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
    )  # fmt: skip


def load_images() -> tuple[torch.Tensor, torch.Tensor]:
    """The handwritten digits of scikit-learn: images with pixels from 0 to 1, and labels."""
    digits = load_digits()
    return torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1), torch.tensor(digits.target)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: torch.utils.data.Dataset, epochs: int, penalty):
    """An ordinary training loop; `penalty()` is what is added to the loss."""
    model.train()
    for _ in range(epochs):
        for images, labels in torch.utils.data.DataLoader(data, batch_size=64, shuffle=True):
            loss = F.cross_entropy(model(images), labels) + penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The percentage of images for which the network gives the right label."""
    model.eval()
    return 100 * (model(images).argmax(1) == labels).float().mean().item()


def main(folder: Path) -> None:
    torch.manual_seed(0)
    images, labels = load_images()
    data = torch.utils.data.TensorDataset(images[:1400], labels[:1400])
    test_images, test_labels = images[1400:], labels[1400:]

    model = make_network()
    train(model, torch.optim.Adam(model.parameters(), 2e-3), data, 4, lambda: 0.0)
    print(f"float:      {accuracy(model, test_images, test_labels):.1f}% accuracy")

    # The search: quantizers and gates are attached in place, and learn together with the weights.
    compressor = bb.attach(model, images[:1], bb.Spec.for_backend("onnxruntime"))
    compressor.calibrate([images[:256]])
    groups = [group | {"lr": LR[group["name"]]} for group in compressor.parameter_groups()]
    train(model, torch.optim.Adam(groups), data, 8, lambda: MU * compressor.penalty())

    # Bits and channels become final; weights and ranges are fine-tuned.
    compressor.fix()
    groups = [group | {"lr": 3e-4} for group in compressor.parameter_groups()]
    train(model, torch.optim.Adam(groups), data, 3, lambda: 0.0)
    print(f"compressed: {accuracy(model, test_images, test_labels):.1f}% accuracy")
    print(compressor.cost())

    # The integer network, its ONNX file, and the proof that both compute what was trained.
    small = bb.deploy(compressor)
    bb.save(small, folder / "deployed")
    bb.export_onnx(small, images[:1], folder / "small.onnx")
    print(bb.verify(compressor, small, folder / "small.onnx", test_images))
    np.savez(folder / "test.npz", images=test_images.numpy(), labels=test_labels.numpy())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
