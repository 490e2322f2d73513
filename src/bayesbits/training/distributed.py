"""Training in several processes: their agreement between steps, the wrapped network, and sharded states.

Besides gradients the processes exchange whether there is another batch, whether anyone was interrupted and whether
anyone failed. These messages go through a process group of their own on the host, so that no device is waited for. In a
single process all of it does nothing.

A network that does not fit on one device is sharded by FSDP2. Its quantizers and gates stay replicated: they are few
numbers, and `fully_shard` refuses scalars. So a network is sharded after attaching and calibrating, without them:

    fully_shard(model, ignored_params=set(compressor.attachment.parameters()))

FSDP then ignores them completely, and their gradients are averaged here. Checkpoints hold the full, unsharded states.
"""

import atexit
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bayesbits.compression.compressor import Compressor
from bayesbits.training.errors import TrainingError


def is_first() -> bool:
    """Whether this process is the one that writes files: the only one, or the first of several."""
    return not dist.is_available() or not dist.is_initialized() or dist.get_rank() == 0


class Ranks:
    """The processes that train together, as a context: their process group on the host lives as long as the block."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._group: Any = None
        self.rank, self.world_size = 0, 1

    def __enter__(self) -> Self:
        _init_process_group(self.device)
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
            self._group = dist.new_group(backend="gloo")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After an error other processes may be gone, and destroying a group would wait for them.
        if self._group is not None and error is None:
            dist.destroy_process_group(self._group)

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def max(self, numbers: Sequence[int]) -> list[int]:
        """For every number its maximum over the processes."""
        if self.world_size == 1:
            return list(numbers)
        tensor = torch.tensor(numbers)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._group)
        return [int(number) for number in tensor.tolist()]

    def mean(self, values: Tensor) -> Tensor:
        """The mean of a tensor on the host over the processes; NaN and infinities reach all of them."""
        if self.world_size == 1:
            return values
        total = values.clone()
        dist.all_reduce(total, group=self._group)
        return total / self.world_size

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in the order of their ranks."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def broadcast(self, value: Any) -> Any:
        """The value of the first process."""
        if self.world_size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self._group)
        return values[0]

    def raise_together(self, error: Exception | None) -> None:
        """Raise in every process if one has an error: its own there, and in the others one that names the process."""
        failures = [f"process {i}: {text}" for i, text in enumerate(self.gather(error and str(error))) if text]
        if error is not None:
            raise error
        if failures:
            raise TrainingError(f"another process failed, so that this one stops too; {failures[0]}")

    def broadcast_state(self, model: nn.Module) -> None:
        """Copy the parameters and buffers of the first process to all others, except for sharded ones."""
        if self.world_size > 1:
            with torch.no_grad():
                for tensor in [*model.parameters(), *model.buffers()]:
                    if _is_dtensor(tensor):
                        continue
                    host = tensor.detach().cpu().contiguous()
                    dist.broadcast(host, src=0, group=self._group)
                    tensor.copy_(host)

    def check_equal(self, tensor: Tensor, what: str) -> None:
        """Raise unless a tensor is the same in every process."""
        rows = self.gather(tensor.detach().cpu())
        if not all(torch.equal(row, rows[0]) for row in rows):
            raise TrainingError(f"{what} differ between processes, which have to start equal: seed all of them alike")

    def wrap(self, model: nn.Module) -> nn.Module:
        """The network to run: itself, or wrapped by DistributedDataParallel, which averages gradients."""
        if self.world_size == 1 or is_sharded(model):
            return model
        devices = [self.device] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=devices)


def is_sharded(model: nn.Module) -> bool:
    """Whether `fully_shard` was called on a network."""
    return any(_is_dtensor(parameter) for parameter in model.parameters())


def local_part(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds."""
    part: Tensor = tensor.to_local() if _is_dtensor(tensor) else tensor  # type: ignore[attr-defined]
    return part


@contextmanager
def averaged_quantizer_gradients(compressor: Compressor) -> Iterator[None]:
    """Inside this context the gradients of a sharded network's quantizers and gates are averaged over the processes.

    Backward reaches them in the same order everywhere, as the network is the same.
    """

    def average(parameter: Tensor) -> None:
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()

    handles = []
    if is_sharded(compressor.model):
        if not compressor.attachment.calibrated:
            raise ValueError("a sharded network cannot be calibrated: call compressor.calibrate before fully_shard")
        handles = [
            parameter.register_post_accumulate_grad_hook(average)  # type: ignore[no-untyped-call]
            for parameter in compressor.attachment.parameters()
            if parameter.requires_grad
        ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# torch.distributed.checkpoint takes more than a second to import: only sharded networks import it.


def full_model_state(model: nn.Module) -> dict[str, Any]:
    """The state dict of a network with full tensors; every process of a sharded one calls this."""
    if not is_sharded(model):
        return model.state_dict()
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))


def load_full_model_state(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load a state dict of full tensors; every process of a sharded network loads its part."""
    if not is_sharded(model):
        model.load_state_dict(state)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    set_model_state_dict(model, dict(state), options=StateDictOptions(full_state_dict=True))


def full_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state dict of an optimizer with full tensors, by the indices of its parameters, as torch's own is."""
    own = optimizer.state_dict()
    if not is_sharded(model) or not own["state"]:  # torch would take a step to fill an empty state
        return own
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    full: Any = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
    names = [name for group in full["param_groups"] for name in group["params"]]
    own["state"] = {index: full["state"][names[index]] for index in own["state"]}
    return own


def shard_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[int, Mapping[str, Any]]) -> dict[int, Any]:
    """Full tensors by the indices of parameters, sharded as the parameters are.

    Not by torch's `set_optimizer_state_dict`: it refuses an optimizer of scalars alone, and ranges are such.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        index: {name: _shard_like(value, parameters[index]) for name, value in values.items()}
        for index, values in state.items()
    }


def _shard_like(value: Any, parameter: Any) -> Any:
    if not _is_dtensor(parameter) or not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)


def _is_dtensor(tensor: Any) -> bool:
    """Whether a tensor is a DTensor, by an attribute that only those have: importing the class takes seconds."""
    return hasattr(tensor, "full_tensor")


def _init_process_group(device: torch.device) -> None:
    """Initialize the default process group where torchrun started several processes and nobody has done so yet."""
    if not dist.is_available() or dist.is_initialized() or not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    atexit.register(_destroy_process_group)


def _destroy_process_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
