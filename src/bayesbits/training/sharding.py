"""Networks whose weights FSDP2 has dealt out to the processes, for those that do not fit on one device.

Quantizers and gates stay whole in every process: they are few numbers, and `fully_shard` refuses scalars. So a network
is sharded after attaching and calibrating, without them:

    fully_shard(model, ignored_params=set(compressor.attachment.parameters()))

and what FSDP then leaves alone is done here: their gradients are averaged over the processes, and checkpoints hold
weights and optimizer states whole.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from bayesbits.compression.compressor import Compressor


def is_dealt_out(tensor: Any) -> bool:
    """Whether a tensor is a DTensor; told by what only those have, as importing their class takes seconds."""
    return hasattr(tensor, "full_tensor")


def is_sharded(model: nn.Module) -> bool:
    """Whether `fully_shard` was called on a network."""
    return any(is_dealt_out(parameter) for parameter in model.parameters())


@contextmanager
def averaging_what_is_whole(compressor: Compressor) -> Iterator[None]:
    """Inside of the block the gradients of quantizers and gates of a sharded network are averages over the processes.

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


def local(tensor: Tensor) -> Tensor:
    """What this process has of a tensor."""
    part: Tensor = tensor.to_local() if is_dealt_out(tensor) else tensor  # type: ignore[attr-defined]
    return part


def whole(state: Any) -> Any:
    """A state with every sharded tensor put together; all processes call this with theirs."""
    if is_dealt_out(state):
        return state.full_tensor()
    if isinstance(state, Mapping):
        kind = type(state)
        gathered = kind((key, whole(value)) for key, value in state.items())  # type: ignore[call-arg]
        if hasattr(state, "_metadata"):
            gathered._metadata = state._metadata  # type: ignore[attr-defined]
        return gathered
    return [whole(value) for value in state] if isinstance(state, list) else state


def dealt_out(state: Any, like: Any) -> Any:
    """A whole tensor as another is dealt out; anything else as it is."""
    if is_dealt_out(like) and isinstance(state, Tensor) and state.shape == like.shape:
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(state.to(like.device), like.device_mesh, like.placements)
    return state


def deal_out_optimizers(state: dict[str, Any], compressor: Compressor) -> dict[str, Any]:
    """The state of optimizers from a checkpoint, dealt out as the parameters are."""
    dealt = dict(state)
    for group in compressor.parameter_groups():
        own = dict(dealt[group["name"]])
        own["state"] = {
            index: {name: dealt_out(value, group["params"][index]) for name, value in values.items()}
            for index, values in own["state"].items()
        }
        dealt[group["name"]] = own
    return dealt
