"""Observing a live network: hooks on its quantizers and batch norms, first statistics, and the restored network."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from bayesbits.nn import Quantizer
from bayesbits.nn.steady_channels import SteadyChannels
from bayesbits.records.topology import Clip
from bayesbits.utils.modes import gradient_flags_restored, modes_restored
from bayesbits.utils.torch_private import BatchNorm, tensor_version

Hook = Callable[[nn.Module, tuple[Tensor, ...]], None]


@contextmanager
def network_restored(model: nn.Module) -> Iterator[None]:
    """Afterwards training flags, buffers, and modes and gradient flags of quantizers are what they were before."""
    quantizers = [module for module in model.modules() if isinstance(module, Quantizer)]
    modes = [(quantizer, quantizer.mode, quantizer.fixed_bits) for quantizer in quantizers]
    parameters = [parameter for quantizer in quantizers for parameter in quantizer.parameters()]
    buffers = [(buffer, tensor_version(buffer), buffer.detach().clone()) for buffer in model.buffers()]
    with modes_restored(model), gradient_flags_restored(parameters):
        try:
            yield
        finally:
            for quantizer, mode, fixed_bits in modes:
                quantizer.enter(mode, fixed_bits)
            with torch.no_grad():
                for buffer, version, value in buffers:
                    if tensor_version(buffer) != version:  # writing to others could break a user's graph
                        buffer.copy_(value)


@contextmanager
def first_statistics_taken(model: nn.Module) -> Iterator[list[BatchNorm]]:
    """The model in evaluation, but for batch norms that have never run: these average over the batches that pass.

    Such a norm starts with a mean of 0 and a variance of 1, which were not measured. Under them activations shrink from
    layer to layer, and ranges that fit those would clip nearly everything as soon as training begins.
    """

    def train_on_several_values(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        norm.training = inputs[0].numel() > inputs[0].shape[1]  # one value for each channel has no variance

    model.eval()
    fresh = [norm for norm in model.modules() if isinstance(norm, BatchNorm) and _has_never_run(norm)]
    momenta = [norm.momentum for norm in fresh]
    handles = [norm.register_forward_pre_hook(train_on_several_values) for norm in fresh]
    for norm in fresh:
        norm.momentum = None
    try:
        yield fresh
    finally:
        for norm, momentum, handle in zip(fresh, momenta, handles, strict=True):
            norm.momentum = momentum
            handle.remove()


def _has_never_run(norm: BatchNorm) -> bool:
    """Whether a batch norm still has its initial statistics. Its counter alone does not say so: old files lack it."""
    if norm.num_batches_tracked is None or norm.running_mean is None or norm.running_var is None:
        return False
    return not (norm.num_batches_tracked.any() or norm.running_mean.any() or (norm.running_var != 1).any())


@contextmanager
def observing(
    quantizers: Mapping[str, Quantizer], observers: Mapping[str, Hook], clips: Iterable[Clip] = ()
) -> Iterator[None]:
    """Inside the block every observer is called with its quantizer's inputs, clipped as those who read them do."""
    hooks = dict(observers)
    hooks |= {clip.tensor: _clipped(hooks[clip.tensor], clip) for clip in clips if clip.tensor in hooks}
    handles = [quantizer.register_forward_pre_hook(hooks[name]) for name, quantizer in quantizers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def channels_seen(model: nn.Module, norms: Mapping[str, SteadyChannels]) -> Iterator[None]:
    """Afterwards the channels in front of these batch norms know their extremes inside the block, unless it raised."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def see(name: str, norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        channels = inputs[0].detach().transpose(0, 1).flatten(1)
        low, high = torch.aminmax(channels, dim=1)
        before = seen.get(name, (low, high))
        seen[name] = torch.minimum(low, before[0]), torch.maximum(high, before[1])

    handles = [model.get_submodule(name).register_forward_pre_hook(partial(see, name)) for name in norms]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    for name, extremes in seen.items():
        norms[name].see(*extremes)


def _clipped(observer: Hook, clip: Clip) -> Hook:
    return lambda module, inputs: observer(module, (inputs[0].clamp(clip.low, clip.high), *inputs[1:]))
