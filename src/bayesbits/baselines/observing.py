"""What the methods that work layer by layer have in common: checks, the float network beside, and looking at one layer.

A network is run only up to the layer that is looked at, and only what that layer reads or returns is held.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.compression.compressor import Compressor, check_compressor
from bayesbits.nn import GatedQuantizer
from bayesbits.nn.layer import AttachedLayer
from bayesbits.nn.quantized_output import observe_output
from bayesbits.records.topology import Layer
from bayesbits.utils.batches import call_model
from bayesbits.utils.torch_private import tree_leaves

See = Callable[[Tensor, Tensor], None]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class SkippedLayer:
    """A layer that a method left as it was."""

    name: str
    """The layer."""
    reason: str
    """Why."""


class _Enough(BaseException):
    """Ends a forward pass; not an Exception, which a network's own code may catch."""


def check_fixed(compressor: Compressor, what: str) -> None:
    """Raise unless bits and channels are final and the network is in evaluation mode."""
    check_compressor(compressor, what)
    attachment = compressor.attachment
    learning = [name for name, quantizer in attachment.quantizers.items() if quantizer.mode == "learning"]
    learning += [name for name, gate in attachment.channel_gates.items() if not gate.fixed]
    if learning:
        raise ValueError(
            f"{what} works on a final plan, and {learning[0]} is still learning: call compressor.fix(plan) first"
        )
    if compressor.model.training:
        raise ValueError(
            f"{what} needs the network as it will be used, and it is in training mode, where batch norm and dropout "
            "follow the batch: call model.eval() first"
        )


def check_batches(batches: Iterable[Any], what: str, least: int = 2) -> list[Any]:
    """The batches, held; raises unless they have enough examples that are not all the same."""
    if isinstance(batches, Tensor):
        raise TypeError(f"{what} takes batches, and this is one tensor: pass [batch]")
    held = list(batches)
    tensors = [[leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim()] for batch in held]
    examples = sum(leaves[0].shape[0] for leaves in tensors if leaves)
    if examples < least:
        raise ValueError(f"{what} needs at least {least} examples, and the batches have {examples}")
    firsts = [leaf[:1] for leaf in next(leaves for leaves in tensors if leaves)]
    varied = any(
        leaf.shape[1:] != first.shape[1:] or bool((leaf != first.to(leaf.device)).any())
        for leaves in tensors
        for leaf, first in zip(leaves, firsts, strict=False)
    )
    if not varied:
        raise ValueError(f"the {examples} examples for {what} are all the same: they say nothing of the network's data")
    return held


def float_copy(compressor: Compressor) -> nn.Module:
    """The network as it is now with every quantizer off; channels that the plan drops stay zero."""
    reference = copy.deepcopy(compressor.model)
    for module in reference.modules():
        if isinstance(module, GatedQuantizer):
            module.turn_off()
    return reference


def detached_copy(compressor: Compressor) -> nn.Module:
    """The plain float network, for reading."""
    return Compressor(copy.deepcopy(compressor.model)).detach()


@contextmanager
def watching_layers(model: nn.Module, observers: Mapping[str, See]) -> Iterator[None]:
    """Inside of the block every observer gets what its layer reads and returns; nothing is recorded for gradients.

    That is before hooks change it, or the quantizer of an addition's operand.
    """

    def hook_of(see: See) -> Callable[..., None]:
        return lambda arguments, keywords, output: see(arguments[0] if arguments else keywords["input"], output)

    handles = [
        handle for name, see in observers.items() for handle in observe_output(model.get_submodule(name), hook_of(see))
    ]
    try:
        with torch.no_grad():
            yield
    finally:
        for handle in handles:
            handle.remove()


def run_to(model: nn.Module, layer: Layer, batch: Any, see: See, *, place: str | None = None) -> None:
    """Run a network on a batch, up to the last call of a layer; `see` gets what the layer reads and returns.

    `place` is another module to look at, which is called as often: the layer's batch norm.
    """
    calls = 0

    def see_and_stop(read: Tensor, returned: Tensor) -> None:
        nonlocal calls
        calls += 1
        see(read, returned)
        if calls == layer.calls:
            raise _Enough

    with suppress(_Enough), watching_layers(model, {place or layer.name: see_and_stop}):
        call_model(model, batch)


def attached_layer(compressor: Compressor, name: str) -> AttachedLayer | None:
    """A layer with what is attached to it; None where it was left in float."""
    module = compressor.model.get_submodule(name)
    return module if isinstance(module, AttachedLayer) else None


def channel_axis(layer: Layer, output: Tensor) -> int:
    """Where the channels lie in what a layer returns."""
    return -1 if layer.kind == "linear" else output.dim() - len(layer.weight_shape) + 1


def along_channels(values: Tensor, layer: Layer, output: Tensor) -> Tensor:
    """A vector over the output channels in a shape that broadcasts against what a layer returns."""
    return values.reshape(
        [-1 if axis == channel_axis(layer, output) % output.dim() else 1 for axis in range(output.dim())]
    )
