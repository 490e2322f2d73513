"""Training in several processes: who is who, agreeing on what comes next, and the network that averages gradients.

What the processes tell each other besides gradients (is there another batch, was anyone interrupted, did anyone fail)
goes through a group of its own on the host, so that no device is waited for. In one process all of it does nothing.
"""

import atexit
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bayesbits.training.errors import TrainingError
from bayesbits.training.sharding import is_sharded, local


def is_first() -> bool:
    """Whether this process is the one that writes: the only one, or the first of several."""
    return not dist.is_available() or not dist.is_initialized() or dist.get_rank() == 0


class Ranks:
    """The processes that train together, as a context: their group on the host lives as long as the block."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._group: Any = None
        self.rank, self.world = 0, 1

    def __enter__(self) -> Self:
        _join(self.device)
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
            self._group = dist.new_group(backend="gloo")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After an error others may be gone, and destroying a group would wait for them.
        if self._group is not None and error is None:
            dist.destroy_process_group(self._group)

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def most(self, numbers: Sequence[int]) -> list[int]:
        """Of every number the largest that any process has."""
        if self.world == 1:
            return list(numbers)
        tensor = torch.tensor(numbers)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._group)
        return [int(number) for number in tensor.tolist()]

    def mean(self, values: Tensor) -> Tensor:
        """The mean of a tensor on the host over the processes; NaN and infinities reach all of them."""
        if self.world == 1:
            return values
        total = values.clone()
        dist.all_reduce(total, group=self._group)
        return total / self.world

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in their order."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self._group)
        return values

    def from_first(self, value: Any) -> Any:
        """The value of the first process."""
        if self.world == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self._group)
        return values[0]

    def fail_together(self, error: Exception | None) -> None:
        """Raise in every process where one has an error: its own there, and what happened where in the others."""
        failures = [f"process {i}: {text}" for i, text in enumerate(self.gather(error and str(error))) if text]
        if error is not None:
            raise error
        if failures:
            raise TrainingError(f"another process failed, so that this one stops too; {failures[0]}")

    def share_state(self, model: nn.Module) -> None:
        """Give every process the parameters and buffers of the first one, but for those that are dealt out."""
        if self.world > 1:
            with torch.no_grad():
                for tensor in [*model.parameters(), *model.buffers()]:
                    if local(tensor) is not tensor:
                        continue
                    host = tensor.detach().cpu().contiguous()
                    dist.broadcast(host, src=0, group=self._group)
                    tensor.copy_(host)

    def check_equal(self, tensor: Tensor, what: str) -> None:
        """Raise unless a tensor is the same in every process."""
        rows = self.gather(tensor.detach().cpu())
        assert all(torch.equal(row, rows[0]) for row in rows), f"{what} differ between processes"

    def parallel(self, model: nn.Module) -> nn.Module:
        """The network to run: itself, or wrapped so that gradients are averaged over the processes."""
        if self.world == 1 or is_sharded(model):
            return model
        devices = [self.device] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=devices)


def _join(device: torch.device) -> None:
    """Join the other processes where torchrun started several and nobody has done so yet."""
    if not dist.is_available() or dist.is_initialized() or not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    atexit.register(_leave)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
