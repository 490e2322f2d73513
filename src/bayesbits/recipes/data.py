"""From a recipe's `[data]` to loaders of batches: for training, for validation if asked for, and for the final test.

Data sets of the zoo are held on the device as a whole. Photographs in folders are read by worker processes. A user's
function returns either a `bayesbits.zoo.data.Data`, which is treated like a data set of the zoo, or loaders: a pair
(train, test) or a triple (train, validation, test) of iterables that start again for each epoch and yield batches of
(inputs, labels).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Sampler, Subset

from bayesbits.recipes.factories import call_factory
from bayesbits.recipes.process import Process
from bayesbits.recipes.recipe import IMAGE_FOLDER, IMAGENET, DataConfig
from bayesbits.training.device_loader import DeviceLoader
from bayesbits.utils.batches import count_examples
from bayesbits.utils.torch_private import tree_map
from bayesbits.zoo import data as zoo

Images = TypeVar("Images", zoo.Data, zoo.FolderData)

_SPLIT_SEED = 0  # the images of validation are the same for every seed of a recipe
_EVALUATION_BATCH = 512


@dataclass(frozen=True)
class Loaders:
    """The loaders of one run."""

    train: Iterable[Any]
    """Batches to train on."""
    validation: Iterable[Any] | None
    """Batches for the evaluation after every epoch; None where no examples are held back."""
    test: Iterable[Any]
    """Batches for the test of the float network and of the final one."""
    example: Any
    """Inputs of one example, on the device."""
    classes: int | None
    """The number of classes; None for a user's loaders."""


def open_data(config: DataConfig, process: Process, seed: int, *, labeled: bool = True) -> Loaders:
    """The loaders of a recipe; with `labeled=False` a user's training loader may yield inputs without labels."""
    if config.batch_size % process.world_size:
        raise ValueError(f"data.batch_size is {config.batch_size}; it must be shared by {process.world_size} processes")
    if config.name == IMAGE_FOLDER:
        return _from_folder(config, process, seed)
    check_data_name(config)
    if not config.factory:
        try:
            found = zoo.load(config.name, config.folder, **config.options)
        except FileNotFoundError as error:
            error.add_note("In a recipe that option is data.folder; on the command line: --set data.folder=FOLDER")
            raise
        return _in_memory(found, config, process, seed)
    made = call_factory(config.name, config.options, "data")
    if isinstance(made, zoo.Data):
        return _in_memory(made, config, process, seed)
    return _from_users_loaders(made, config, process, labeled)


def check_data_name(config: DataConfig) -> None:
    """Raise unless the name is that of a data set of the zoo, or of a function."""
    if not config.factory and config.name not in (*zoo.names(), IMAGE_FOLDER):
        known = ", ".join((*zoo.names(), IMAGE_FOLDER))
        raise ValueError(f"data.name is {config.name!r}; it is one of {known}, or package.module:function")


def _normalized(data: Images, config: DataConfig) -> Images:
    """The data with the mean and standard deviation that the recipe asks for."""
    if config.standardize is True:
        return data
    channels = len(data.mean)
    if config.standardize == IMAGENET:
        if channels != len(zoo.ImageFolder.mean):
            raise ValueError(
                f'data.standardize is "{IMAGENET}", which is for color images; these have {channels} channel'
            )
        return replace(data, mean=zoo.ImageFolder.mean, std=zoo.ImageFolder.std)
    return replace(data, mean=(0.0,) * channels, std=(1.0,) * channels)


def _in_memory(data: zoo.Data, config: DataConfig, process: Process, seed: int) -> Loaders:
    data = _normalized(data, config)

    def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
        if config.padding or config.flip:
            images = zoo.augment(images, generator, config.padding, config.flip)
        return zoo.normalize(images, data)

    def plain(images: Tensor, _generator: torch.Generator) -> Tensor:
        return zoo.normalize(images, data)

    def evaluation(dataset: zoo.Dataset) -> DeviceLoader:
        return DeviceLoader(dataset, _EVALUATION_BATCH, device=process.device, shuffle=False, transform=plain)

    train, validation = data.train, None
    if config.validation:
        kept, held_back = (torch.from_numpy(part) for part in _split(len(train), config.validation))
        validation = zoo.Dataset(train.images[held_back], train.labels[held_back], train.classes)
        train = zoo.Dataset(train.images[kept], train.labels[kept], train.classes)
    loader = DeviceLoader(
        train, config.batch_size // process.world_size, device=process.device, transform=augmented, seed=seed,
        rank=process.rank, world_size=process.world_size,
    )  # fmt: skip
    example = zoo.normalize(train.images[:1].to(process.device), data)
    return Loaders(
        loader, evaluation(validation) if validation else None, evaluation(data.test), example, data.train.classes
    )


def _from_folder(config: DataConfig, process: Process, seed: int) -> Loaders:
    if config.folder is None:
        raise ValueError(
            "data.folder is missing: the folder with train/ and val/, each with a folder of pictures for every class; "
            "on the command line: --set data.folder=FOLDER"
        )
    if config.padding or config.flip:
        raise ValueError("data.padding and data.flip are for small images: photographs are cropped and mirrored anyway")
    data = _normalized(zoo.image_folder(config.folder, **config.options), config)
    train: Any = data.train
    validation: Any = None
    if config.validation:
        kept, held_back = _split(len(data.train), config.validation)
        unchanged = zoo.ImageFolder(data.train.folder, data.train.size)
        train, validation = Subset(data.train, kept.tolist()), Subset(unchanged, held_back.tolist())
    sampler: Sampler[int] = RandomSampler(train, generator=torch.Generator().manual_seed(seed))
    if process.world_size > 1:
        sampler = DistributedSampler(train, process.world_size, process.rank, seed=seed)

    def loader(pictures: Any, batch_size: int, sampler: Sampler[int] | None = None) -> PictureLoader:
        return PictureLoader(pictures, data, process.device, batch_size, sampler, config.workers)

    example = zoo.normalize(data.test[0][0].unsqueeze(0).to(process.device), data)
    return Loaders(
        loader(train, config.batch_size // process.world_size, sampler),
        loader(validation, config.batch_size) if validation is not None else None,
        loader(data.test, config.batch_size),
        example,
        data.train.classes,
    )


class PictureLoader(DataLoader[Any]):
    """Photographs as bytes from worker processes, normalized on the device."""

    def __init__(
        self,
        pictures: Any,
        statistics: zoo.FolderData,
        device: torch.device,
        batch_size: int,
        sampler: Sampler[int] | None,
        workers: int,
    ) -> None:
        super().__init__(
            pictures, batch_size, sampler=sampler, num_workers=workers, pin_memory=device.type == "cuda",
            generator=getattr(sampler, "generator", None),
        )  # fmt: skip
        self._statistics, self._device = statistics, device

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for images, labels in super().__iter__():
            images = images.to(self._device, non_blocking=True)
            yield zoo.normalize(images, self._statistics), labels.to(self._device, non_blocking=True)


def inputs_of(batch: Any) -> Any:
    """The inputs of a batch of a training loader, with or without labels."""
    return batch[0] if isinstance(batch, tuple | list) and len(batch) in (1, 2) else batch


def first_batches(batches: Iterable[Any], count: int) -> list[Any]:
    """Batches with `count` examples in all, the last one cut; a batch is a tensor, or tensors in tuples and dicts."""
    taken: list[Any] = []
    left = count
    for batch in batches:
        taken.append(tree_map(lambda leaf, left=left: leaf[:left] if _has_examples(leaf) else leaf, batch))
        left -= count_examples(batch)
        if left <= 0:
            break
    return taken


def first_examples(batches: Iterable[Any], count: int) -> Any:
    """The first `count` examples as one batch."""
    taken = first_batches(batches, count)
    if not taken:
        raise ValueError("the loader gave no batches")
    return tree_map(lambda *leaves: torch.cat(leaves) if _has_examples(leaves[0]) else leaves[0], *taken)


def _has_examples(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0


def _from_users_loaders(made: Any, config: DataConfig, process: Process, labeled: bool) -> Loaders:
    if not isinstance(made, tuple) or len(made) not in (2, 3) or any(isinstance(part, Iterator) for part in made):
        raise ValueError(
            f"the data {config.name!r} returned a {type(made).__name__}; it returns a bayesbits.zoo.data.Data, or "
            "a tuple (train, test) or (train, validation, test) of loaders, iterables that start again for every epoch"
        )
    if config.padding or config.flip or config.validation or config.standardize is not True:
        raise ValueError(
            "data.padding, data.flip, data.standardize and data.validation are not for loaders: they do that themselves"
        )
    batch = next(iter(made[0]), None)
    if batch is None:
        raise ValueError(f"the training loader of {config.name!r} yields no batches")
    if labeled and (not isinstance(batch, tuple | list) or len(batch) != 2):
        raise ValueError(
            f"the training loader of {config.name!r} yields no pairs (inputs, labels). A trained network can "
            "be compressed without labels: bayesbits posttrain --labels none --checkpoint FILE"
        )
    validation = made[1] if len(made) == 3 else None
    return Loaders(made[0], validation, made[-1], _first_example(inputs_of(batch), process.device), None)


def _first_example(inputs: Any, device: torch.device) -> Any:
    if isinstance(inputs, dict):
        return {name: _first_example(value, device) for name, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        return tuple(_first_example(value, device) for value in inputs)
    return inputs[:1].to(device) if isinstance(inputs, Tensor) else inputs


def _split(number: int, held_back: int) -> tuple[Any, Any]:
    """The indices of the images for training and of those held back: the last ones of one fixed random order."""
    if held_back >= number:
        raise ValueError(f"data.validation is {held_back}; there are only {number} training images")
    # NumPy promises never to change the stream of RandomState.
    order = np.random.RandomState(_SPLIT_SEED).permutation(number)
    return order[: number - held_back], order[number - held_back :]
