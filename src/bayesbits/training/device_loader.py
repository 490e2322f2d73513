"""A loader for data sets that fit on the device: images and labels lie there, and a batch is an indexing.

Order and augmentation are functions of the seed, the epoch and the number of the batch. So a batch can be made without
those before it, which makes resuming exact and free. Several processes together see the batches that a single process
with the joint batch size would see: order and augmentation are drawn for all of them, and each takes its part.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from bayesbits.training.randomness import mix_seed

Transform = Callable[[Tensor, torch.Generator], Tensor]


class Labeled(Protocol):
    """A data set in memory."""

    @property
    def images(self) -> Tensor:
        """[N, ...]."""

    @property
    def labels(self) -> Tensor:
        """[N, ...]."""


class DeviceLoader:
    """Batches of images and labels, made on the device without waiting for it.

    Args:
        dataset: Anything with the tensors `images` and `labels`, both [N, ...].
        batch_size: The batch size of one process.
        device: Where the data set is moved; None: it stays where its images are.
        shuffle: Whether every epoch has an order of its own.
        transform: `transform(images, generator)` normalizes and augments. It gets the joint batch of all processes, and
            draws random numbers from `generator` only.
        seed: The seed of order and augmentation.
        rank: The number of this process, from 0; it decides on its part of the joint batch.
        world_size: The number of processes.
        drop_last: Whether a last, smaller batch is left out. Otherwise, with several processes, it is shortened until
            they can share it equally.

    Raises:
        ValueError: The arguments do not fit each other, or give no batch.

    Example::

        >>> import torch, bayesbits as bb
        >>> from types import SimpleNamespace
        >>> dataset = SimpleNamespace(images=torch.arange(5.0).view(5, 1), labels=torch.arange(5))
        >>> loader = bb.DeviceLoader(dataset, batch_size=2, shuffle=False)
        >>> len(loader)
        3
        >>> [labels.tolist() for _, labels in loader]
        [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        dataset: Labeled,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        shuffle: bool = True,
        transform: Transform | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
    ) -> None:
        if len(dataset.images) != len(dataset.labels):
            raise ValueError(f"{len(dataset.images)} images do not fit {len(dataset.labels)} labels")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it is at least 1")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank} of {world_size}; ranks count from 0")
        self.images = dataset.images if device is None else dataset.images.to(device)
        self.labels = dataset.labels.to(self.images.device)
        self.batch_size, self.shuffle, self.transform, self.seed = batch_size, shuffle, transform, seed
        self.rank, self.world_size, self.drop_last = rank, world_size, drop_last
        self.epoch = 0
        if len(self) == 0:
            raise ValueError(
                f"{len(self.images)} images make no batch of {batch_size} for each of {world_size} processes: "
                "take smaller batches"
            )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; it decides on order and augmentation."""
        self.epoch = epoch

    def __len__(self) -> int:
        whole, rest = divmod(len(self.images), self.batch_size * self.world_size)
        return whole + (not self.drop_last and rest >= self.world_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.batches_from(0)

    def batches_from(self, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of this epoch from number `first` on; those before it are not made."""
        epoch, device = self.epoch, self.images.device
        order = self._order(epoch)
        generator = torch.Generator(device)
        for batch in range(first, len(self)):
            start = batch * self.batch_size * self.world_size
            chosen = order[start : start + self.batch_size * self.world_size]
            share = len(chosen) // self.world_size
            own = slice(self.rank * share, (self.rank + 1) * share)
            if self.transform is None:
                images = self.images[chosen[own]]
            else:
                generator.manual_seed(mix_seed(self.seed, epoch, batch))
                images = self.transform(self.images[chosen[: share * self.world_size]], generator)[own]
            yield images, self.labels[chosen[own]]

    def _order(self, epoch: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(len(self.images), device=self.images.device)
        # Drawn on the host, so that it is the same on every device.
        generator = torch.Generator().manual_seed(mix_seed(self.seed, epoch))
        return torch.randperm(len(self.images), generator=generator).to(self.images.device)
