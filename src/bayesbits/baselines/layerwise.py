"""What the baselines that work layer by layer have in common: checks, float copies, and observing a single layer.

The network is run only up to the layer that is observed, and only the inputs and outputs of that layer are held.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.compression.compressor import Compressor, check_compressor, check_gated
from bayesbits.graph.layers import FoundLayer
from bayesbits.nn import Quantizer
from bayesbits.nn.layer import AttachedLayer
from bayesbits.nn.quantized_output import observe_output
from bayesbits.nn.weight_product import find_layer
from bayesbits.records.topology import Layer
from bayesbits.utils.batches import all_examples_equal, batched_tensors, call_without_labels
from bayesbits.utils.torch_private import BatchNorm

Observer = Callable[[Tensor, Tensor], None]
"""Is called with the input and the output of a layer."""
Progress = Callable[[str, int, int], None]
"""Is called with a layer's name, its number from 1 on, and the number of layers."""


@dataclass(frozen=True)
class SkippedLayer:
    """A layer that a method did not change."""

    name: str
    """The layer."""
    reason: str
    """Why it was not changed."""


class _Stop(BaseException):
    """Ends a forward pass. It is not an Exception, which the network's own code may catch."""


def check_fixed(compressor: Compressor, method: str) -> None:
    """Raise unless bits and channels are final and the network is in evaluation mode."""
    check_compressor(compressor, method)
    check_gated(compressor, method)
    attachment = compressor.attachment
    learning = [name for name, quantizer in attachment.quantizers.items() if quantizer.mode == "learning"]
    learning += [name for name, gate in attachment.channel_gates.items() if not gate.fixed]
    if learning:
        raise ValueError(
            f"{method} works on a final plan, and {learning[0]} is still learning: call compressor.fix(plan) first"
        )
    if compressor.model.training:
        raise ValueError(
            f"{method} needs the network as it will be used, and it is in training mode, where batch norm and dropout "
            "follow the batch: call model.eval() first"
        )


def check_batches(batches: Iterable[Any], method: str, least: int = 2) -> list[Any]:
    """The batches as a list; raises unless they hold `least` examples that are not all equal."""
    if isinstance(batches, Tensor):
        raise TypeError(f"{method} takes batches, and this is one tensor: pass [batch]")
    held = list(batches)
    with_examples = [tensors for tensors in map(batched_tensors, held) if tensors]
    examples = sum(len(tensors[0]) for tensors in with_examples)
    if examples < least:
        raise ValueError(f"{method} needs at least {least} examples, and the batches have {examples}")
    if all_examples_equal(with_examples):
        raise ValueError(
            f"the {examples} examples for {method} are all the same: they say nothing of the network's data"
        )
    return held


def float_copy(compressor: Compressor) -> nn.Module:
    """A copy of the network with every quantizer off; channels that the plan removes stay zero."""
    reference = copy.deepcopy(compressor.model)
    for module in reference.modules():
        if isinstance(module, Quantizer):
            module.turn_off()
    return reference


def detached_copy(compressor: Compressor) -> nn.Module:
    """A copy of the network with nothing attached to it."""
    return Compressor(copy.deepcopy(compressor.model)).detach()


def attached_layer(compressor: Compressor, name: str) -> AttachedLayer | None:
    """A layer with its quantizers; None where it was left in float."""
    module = find_layer(compressor.model, name)
    return module if isinstance(module, AttachedLayer) else None


def norm_of(model: nn.Module, layer: Layer | FoundLayer) -> BatchNorm | None:
    """The batch norm that follows a layer and is the only reader of its output; None where there is none."""
    norm = None if layer.norm is None else model.get_submodule(layer.norm)
    assert norm is None or isinstance(norm, BatchNorm)
    return norm


@contextmanager
def observing_layers(model: nn.Module, observers: Mapping[str, Observer]) -> Iterator[None]:
    """Inside the block every observer is called with the input and output of its module, without gradients.

    The output is taken before hooks change it, and before it is quantized as an operand of a residual addition.
    """

    def hook_of(observe: Observer) -> Callable[..., None]:
        return lambda arguments, keywords, output: observe(arguments[0] if arguments else keywords["input"], output)

    handles = [
        handle
        for name, observe in observers.items()
        for handle in observe_output(find_layer(model, name), hook_of(observe))
    ]
    try:
        with torch.no_grad():
            yield
    finally:
        for handle in handles:
            handle.remove()


def run_to(model: nn.Module, layer: Layer, batch: Any, observe: Observer, *, module: str | None = None) -> None:
    """Run a network on a batch up to the last call of a layer; `observe` gets the layer's input and output.

    `module` names another module to observe, which is called as often as the layer: its batch norm.
    """
    calls = 0

    def observe_and_stop(layer_input: Tensor, output: Tensor) -> None:
        nonlocal calls
        calls += 1
        observe(layer_input, output)
        if calls == layer.calls:
            raise _Stop

    with suppress(_Stop), observing_layers(model, {module or layer.name: observe_and_stop}):
        call_without_labels(model, batch)


def channel_axis(layer: Layer, output: Tensor) -> int:
    """The axis of the channels in a layer's output."""
    return -1 if layer.kind == "linear" else output.dim() - len(layer.weight_shape) + 1


def along_channels(values: Tensor, layer: Layer, output: Tensor) -> Tensor:
    """A vector over the output channels, in a shape that broadcasts against a layer's output."""
    return values.reshape(
        [-1 if axis == channel_axis(layer, output) % output.dim() else 1 for axis in range(output.dim())]
    )
