"""A small problem to train on, the same in every process, with everything in it that must survive a resume."""

import copy
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayesbits as bb
from bayesbits.training.metrics import read_metrics


@dataclass
class Labeled:
    """Images and labels in memory."""

    images: Tensor
    labels: Tensor


class Network(nn.Module):
    """A convolution, a batch norm, dropout and two linear layers."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(4 * 9, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.convolution(x)))
        return self.head(F.relu(self.hidden(self.dropout(x.flatten(1)))))


def data(count: int = 44) -> Labeled:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, 1, 5, 5, generator=generator)
    return Labeled(images, (images.mean((1, 2, 3)) * 8 + 1).round().clamp(0, 2).long())


def noisy(images: Tensor, generator: torch.Generator) -> Tensor:
    return images + 0.1 * torch.randn(images.shape, generator=generator)


_attached: dict[str, nn.Module] = {}


def compressor(
    spec: bb.Spec | None = None, make: Callable[[], nn.Module] = Network, example: Tensor | None = None
) -> bb.Compressor:
    """A network with quantizers attached, always the same, and again for every caller."""
    key = f"{make} {spec}"
    if key not in _attached:
        torch.manual_seed(3)
        model = make()
        bb.attach(model, torch.zeros(2, 1, 5, 5) if example is None else example, spec)
        _attached[key] = model
    return bb.Compressor(copy.deepcopy(_attached[key]))


class Stream:
    """An iterable without a length."""

    def __init__(self, count: int | None = 4) -> None:
        self.count = count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        entry, batch = data(), 0
        while self.count is None or batch < self.count:
            start = 11 * (batch % 4)
            yield entry.images[start : start + 11] + 0.1 * torch.randn(11, 1, 5, 5), entry.labels[start : start + 11]
            batch += 1


def loaders() -> dict[str, Any]:
    """Loaders of four batches, with randomness of all kinds."""
    entry = data()
    tensors = TensorDataset(entry.images, entry.labels)
    return {
        "device": bb.DeviceLoader(entry, 12, transform=noisy, seed=5),
        "shuffling": DataLoader(tensors, batch_size=12, shuffle=True),
        "own generator": DataLoader(tensors, 12, shuffle=True, generator=torch.Generator().manual_seed(4)),
        "stream": Stream(),
    }


def config(**changes: Any) -> bb.SearchConfig:
    given = {"epochs": 3, "gates": {"lr": 0.2}, "checkpoint_seconds": 0, "log_steps": 3, "frozen_statistics": 0.3}
    return bb.SearchConfig(**(given | changes))


def state(compressor: bb.Compressor) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in compressor.model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def searched(handle=None, loader=None, loss_fn=F.cross_entropy, /, *, options=None, **changes):
    """A compressor after a search, and its plan; `options` are those of `search`, the others those of the config."""
    handle = compressor() if handle is None else handle
    loader = loaders()["device"] if loader is None else loader
    plan = bb.search(handle, loader, loss_fn, config(**changes), progress=False, **options or {})
    return handle, plan


def training_lines(folder):
    return [line for line in read_metrics(folder / "metrics.jsonl") if line["event"] == "train"]


def undisturbed(kind, **changes):
    """The state and the plan after a search that nothing stops."""
    handle = compressor()
    plan = bb.search(handle, loaders()[kind], F.cross_entropy, config(**changes), progress=False)
    return state(handle), plan


def resumed(kind, folder, **changes):
    """The state and the plan after a search that resumes in a folder."""
    handle = compressor()
    torch.manual_seed(99)  # nothing may depend on the state at entry
    plan = bb.search(
        handle, loaders()[kind], F.cross_entropy, config(**changes), folder=folder, resume=True, progress=False
    )
    return state(handle), plan


class Failing:
    """A loss that does something in its n-th call."""

    def __init__(self, call: int, act: Callable[[], Any]) -> None:
        self.remaining, self.act = call, act

    def __call__(self, output: Tensor, targets: Tensor) -> Tensor:
        self.remaining -= 1
        if self.remaining == 0:
            self.act()
        return F.cross_entropy(output, targets)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def search_and_die(folder: str, loader: str, moment: str) -> None:
    """A process that is killed in the middle of a step, or between the bytes of a checkpoint and its place."""
    if moment == "step":
        bb.search(compressor(), loaders()[loader], Failing(7, die), config(), folder=folder, progress=False)
    replace = os.replace
    remaining = 7

    def replace_or_die(*arguments: Any) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            die()
        replace(*arguments)

    os.replace = replace_or_die
    bb.search(compressor(), loaders()[loader], F.cross_entropy, config(), folder=folder, progress=False)


if __name__ == "__main__":
    search_and_die(*sys.argv[1:])
