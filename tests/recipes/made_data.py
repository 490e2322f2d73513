"""Every data set of the shipped recipes, made small, and overrides that make a run on it short."""

from pathlib import Path

import torch

from bayesbits.zoo import models
from tests.zoo.data_files import cifar_arrays, noise, pickled_batch, write_batches, write_mnist, write_pictures

# 2 steps of float training, 4 of search and 2 of fine-tuning.
SHORT_DIGITS = ["float.epochs=1", "search.epochs=2", "finetune.epochs=1"]
SHORT_DIGITS += [f"{stage}.epoch_steps=2" for stage in ("float", "search", "finetune")]


def made_for(recipe: str, folder: Path) -> list[str]:
    """Write what a recipe needs into a folder; the overrides with which it finds it."""
    data = recipe.split("-")[0]
    if data in ("mnist", "fashion"):
        write_mnist(folder)
    elif data == "cifar10":
        write_batches(folder, {name: pickled_batch(*arrays) for name, arrays in cifar_arrays(number=3).items()})
    elif data == "imagenet":
        return made_pictures(recipe.split("-")[1], folder)
    return [f"data.folder={folder}"]


def made_pictures(model: str, folder: Path) -> list[str]:
    """Two classes of photographs, and a checkpoint of a network for two classes."""
    for split in ("train", "val"):
        names = [f"{split}/{label}/{number}.png" for label in ("cat", "dog") for number in range(3)]
        write_pictures(folder, {name: noise(40, 48, 3, seed=seed) for seed, name in enumerate(names)})
    checkpoint = folder / "weights.pth"
    torch.manual_seed(0)
    torch.save(models.create(model, num_classes=2).state_dict(), checkpoint)
    return [
        f"data.folder={folder}",
        f"model.checkpoint={checkpoint}",
        "data.options.size=32",
        "data.workers=0",
        "data.batch_size=3",
    ]


MODULE = """
import torch
from torch import nn

def network():
    return nn.Linear(4, 3)

def data():
    torch.manual_seed(0)
    inputs = torch.randn(16, 4)
    return [(inputs, torch.arange(16) % 3)], [(inputs, torch.arange(16) % 3)]
"""
"""A module of a user with a network and its data."""
