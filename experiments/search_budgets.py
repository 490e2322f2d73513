"""Searches with a budget on small networks: is every result within it, how much of it is used, and at what accuracy?

    python -m experiments.search_budgets --data FOLDER --steps 300
    python -m experiments.search_budgets --data FOLDER --steps 3000

FOLDER holds `mnist`. LeNet-5 is trained on MNIST, of which 5,000 training images are held back and decide; a small
CNN and a residual one are trained on scikit-learn's digits, of which 400 are. Every network is trained in float first,
then searched for the given number of steps from there, with nothing but the budget said. `--mu` searches with fixed
weights of the penalty instead, for comparison. The result file is written after every run, and runs that it has are
not repeated.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import bayesbits as bb
from bayesbits.zoo import data, models

BATCH = 32
FLOAT_STEPS = 1500
RESULTS = Path(__file__).parent / "results"


class Residual(nn.Module):
    """Two residual blocks with batch norm for images of 8 x 8 pixels."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = self._normalized(1, width)
        self.first = nn.Sequential(self._normalized(width, width), nn.ReLU(), self._normalized(width, width))
        self.down = self._normalized(width, 2 * width, stride=2)
        self.second = nn.Sequential(
            self._normalized(2 * width, 2 * width), nn.ReLU(), self._normalized(2 * width, 2 * width)
        )
        self.head = nn.Linear(2 * width, 10)

    @staticmethod
    def _normalized(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(x + self.first(x))
        x = F.relu(self.down(x))
        x = F.relu(x + self.second(x))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


def small() -> nn.Module:
    """A CNN without batch norm for images of 8 x 8 pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


NETWORKS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "digits": ("digits", small),
    "residual": ("digits", Residual),
    "lenet5": ("mnist", lambda: models.create("lenet5")),
}


def images_of(name: str, folder: Path) -> tuple[TensorDataset, TensorDataset]:
    """The images to train with, and those that are held back."""
    part = data.load(name, folder, **({"size": 8} if name == "digits" else {}))
    images = (part.train.images.float() / 255 - 0.5) * 4
    labels, held = part.train.labels.long(), 400 if name == "digits" else 5000
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    return TensorDataset(images[held:], labels[held:]), TensorDataset(images[:held], labels[:held])


def batches(images: TensorDataset, steps: int, seed: int) -> DataLoader[Any]:
    """An epoch of so many batches."""
    generator = torch.Generator().manual_seed(seed)
    sampler = torch.utils.data.RandomSampler(images, replacement=True, num_samples=steps * BATCH, generator=generator)
    return DataLoader(images, batch_sampler=torch.utils.data.BatchSampler(sampler, BATCH, drop_last=True))


@torch.no_grad()
def accuracy(model: nn.Module, images: TensorDataset) -> float:
    """In percent."""
    x, labels = images.tensors
    model.eval()
    right = sum(int((model(x[i : i + 500]).argmax(1) == labels[i : i + 500]).sum()) for i in range(0, len(x), 500))
    return 100 * right / len(x)


def trained(make: Callable[[], nn.Module], images: TensorDataset, seed: int) -> nn.Module:
    """The float network."""
    torch.manual_seed(seed)
    model = make()
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, FLOAT_STEPS)
    for x, labels in batches(images, FLOAT_STEPS, seed):
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
        schedule.step()
    return model


def search(
    model: nn.Module, images: TensorDataset, held: TensorDataset, seed: int, steps: int, options: dict[str, Any]
) -> dict[str, Any]:
    """One search; its cost, how much of its budget it uses, and its accuracy on the images that were held back."""
    compressor = bb.attach(model, images[0][0][None])
    config = bb.SearchConfig(epochs=1, seed=seed, **options)
    began = time.perf_counter()
    plan = bb.search(compressor, batches(images, steps, seed + 1), F.cross_entropy, config)
    seconds = time.perf_counter() - began
    cost = compressor.cost(plan)
    compressor.fix(plan)
    return {
        "relative_bops": cost.relative_bops,
        "weight_bytes": cost.weight_bytes,
        "within": config.budget is None or config.budget.allows(cost),
        "used": None if config.budget is None else config.budget.used(cost),
        "accuracy": accuracy(model, held),
        "seconds": round(seconds, 1),
    }


def runs(options: argparse.Namespace) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Network, seed and options of every search."""
    settings: list[dict[str, Any]] = [{"mu": mu} for mu in options.mu]
    if not settings:
        settings = [{"budget": budget} for budget in options.budgets]
    extra = json.loads(options.set)
    for seed in range(options.seeds):
        for name in options.networks:
            for setting in settings:
                yield name, seed, setting | extra


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--budgets", nargs="+", default=["0.5% bops", "1% bops", "2% bops", "5% bops"])
    parser.add_argument("--mu", nargs="*", type=float, default=[])
    parser.add_argument("--set", default="{}", help="more of SearchConfig, as JSON")
    parser.add_argument("--output", type=Path, default=RESULTS / "search-budgets.json")
    options = parser.parse_args()
    rows = json.loads(options.output.read_text()) if options.output.exists() else []
    floats: dict[tuple[str, int], tuple[nn.Module, float]] = {}
    sets = {name: images_of(NETWORKS[name][0], options.data) for name in options.networks}
    for name, seed, setting in runs(options):
        key = {"network": name, "seed": seed, "steps": options.steps, **setting}
        if any(row["key"] == key for row in rows):
            continue
        images, held = sets[name]
        if (name, seed) not in floats:
            model = trained(NETWORKS[name][1], images, seed)
            floats[name, seed] = model, accuracy(model, held)
        model, float_accuracy = floats[name, seed]
        found = search(copy.deepcopy(model), images, held, seed, options.steps, setting)
        rows.append({"key": key, "float_accuracy": float_accuracy} | found)
        print(json.dumps(rows[-1]), flush=True)
        options.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
