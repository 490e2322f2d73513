"""The user's loader as the engine reads it: batches on the network's device, from a given position on.

A loader is anything that can be iterated once for every epoch: a DataLoader, a `DeviceLoader`, a list, an iterable
without a length. Its batches are pairs of inputs and targets. When an interrupted epoch resumes, the batches that are
done are skipped: a `DeviceLoader` does not make them, and other loaders make them once more.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch

from bayesbits.utils.batches import to_device

Batch = tuple[Any, Any]


class Batches:
    """The batches of a loader, epoch by epoch; `epoch_steps` ends an epoch after so many batches."""

    def __init__(self, loader: Iterable[Any], device: torch.device, epoch_steps: int | None = None) -> None:
        if isinstance(loader, Iterator):
            raise TypeError(
                f"the loader is an iterator ({type(loader).__name__}), which is empty after one epoch: pass something "
                "that can be iterated again, such as a DataLoader, a list or an object with __iter__"
            )
        if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
            raise TypeError(f"the loader is a {type(loader).__name__}, which cannot be iterated")
        self.loader, self.device, self.epoch_steps = loader, device, epoch_steps

    @property
    def length(self) -> int | None:
        """The number of batches in an epoch; None where the loader has no length."""
        try:
            length = len(self.loader)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            return self.epoch_steps
        return length if self.epoch_steps is None else min(length, self.epoch_steps)

    @property
    def generators(self) -> list[torch.Generator]:
        """The generators that a DataLoader and its samplers draw from; they are part of the position in the data."""
        sampler, batch_sampler = getattr(self.loader, "sampler", None), getattr(self.loader, "batch_sampler", None)
        owners = (self.loader, sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
        found = [getattr(owner, "generator", None) for owner in owners]
        return list({id(entry): entry for entry in found if isinstance(entry, torch.Generator)}.values())

    def start(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, without the first `skip`."""
        for name in (None, "sampler", "batch_sampler"):
            owner: Any = self.loader if name is None else getattr(self.loader, name, None)
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)
        if hasattr(self.loader, "batches_from"):
            batches = self.loader.batches_from(skip)
        else:
            batches = iter(self.loader)
            for _ in islice(batches, skip):
                pass
        remaining = None if self.epoch_steps is None else max(0, self.epoch_steps - skip)
        return (self._checked(batch) for batch in islice(batches, remaining))

    def _checked(self, batch: Any) -> Batch:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            count = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
            raise TypeError(
                f"a batch is a pair (inputs, targets), and this one is a {type(batch).__name__}{count}; several inputs "
                "are a tuple or a dict in its first place"
            )
        inputs, targets = batch
        return to_device(inputs, self.device), to_device(targets, self.device)
