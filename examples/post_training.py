"""Choose the bits of a trained network from a few hundred images, without labels and without changing a weight.

python examples/post_training.py FOLDER
"""

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import bayesbits as bb


def train_network(images: Tensor, labels: Tensor) -> nn.Module:
    """A float network, trained: yours comes from somewhere else."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(6):
        for chosen in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
    return model.eval()


def main(folder: Path) -> None:
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target)
    model = train_network(images[:1400], labels[:1400])

    @torch.no_grad()
    def accuracy(model: nn.Module) -> float:
        return 100 * (model(images[1400:]).argmax(1) == labels[1400:]).float().mean().item()

    print(f"float: {accuracy(model):.1f}%")
    compressor = bb.attach(model, images[:1], bb.Spec(bits=(2, 4, 8), prune=False, gates="hard_sigmoid"))
    config = bb.PosttrainConfig(loss="output", mus=(0.0001, 0.001, 0.01))
    front = bb.posttrain(compressor, images[:256].split(64), "gates+ranges", config, evaluate=accuracy)
    print(front)
    front.save(folder / "front.json")

    point = front.within(2.0)  # the best that costs at most 2% of the bit operations
    bb.restore(compressor, point)
    report = bb.baselines.adaround(compressor, [images[:256]], bb.baselines.AdaRoundConfig(steps=100))
    print(report)
    print(f"{accuracy(model):.1f}% accuracy at {compressor.cost().relative_bops:.2f}% of the bit operations")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
