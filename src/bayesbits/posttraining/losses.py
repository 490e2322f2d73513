"""The losses of post-training, each as a function of the index of a batch.

    labels    loss_fn(output, labels); by default cross-entropy
    output    KL(p || q), averaged over the examples; p is the softmax of the float network's output, q that of ours
    cosine    1 - cos(y, f), averaged over the examples; y is our output, and f the float network's
    mse       |y - f|^2 / |f|^2: the squared error, relative to the squares of the float network's output
    layers    the same, averaged over the layers; y is the output of a layer with its batch norm

or a function of one's own, `loss(output, float_output)`. Probabilities and vectors lie along the axis of channels: the
last one, or of dense outputs (N, C, H, W) the second. Where a network returns several tensors, in a tuple, a dict or an
object, the losses of its float tensors are added.

The float network is the live one with its quantizers off, so that there is no copy. Its outputs are computed once. The
outputs of all of its layers would need too much memory, and are computed again for every batch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesbits.compression.compressor import Compressor
from bayesbits.nn.quantized_output import observe_output
from bayesbits.nn.weight_product import find_layer
from bayesbits.posttraining.quantizer_state import as_float_network
from bayesbits.utils.batches import call_model, call_without_labels
from bayesbits.utils.pytree import tensors_in

LossFunction = Callable[[Any, Any], Tensor]
BatchLoss = Callable[[int], Tensor]


def batch_loss(
    compressor: Compressor,
    loss: str | LossFunction,
    inputs: list[Any],
    labels: list[Any],
    loss_fn: LossFunction | None = None,
) -> BatchLoss:
    """The loss of a batch with the present gates, as a function of the batch's index."""
    model = compressor.model
    if loss == "layers":
        return lambda index: layers_loss(compressor, inputs[index])
    if loss == "labels":
        targets, compare = labels, loss_fn or F.cross_entropy
    else:
        targets = float_outputs(compressor, inputs)
        compare = loss if callable(loss) else over_tensors(COMPARISONS[loss])
    return lambda index: compare(call_model(model, inputs[index]), targets[index])


def float_outputs(compressor: Compressor, inputs: list[Any]) -> list[Any]:
    """What the float network returns, batch by batch."""
    with as_float_network(compressor.attachment), torch.no_grad():
        return [call_without_labels(compressor.model, batch) for batch in inputs]


def over_tensors(compare: Callable[[Tensor, Tensor], Tensor]) -> LossFunction:
    """A comparison of two outputs: the sum of that of their float tensors, one after the other."""

    def compare_outputs(output: Any, float_output: Any) -> Tensor:
        ours, theirs = (
            [tensor for tensor in tensors_in(one) if tensor.is_floating_point()] for one in (output, float_output)
        )
        if not ours or len(ours) != len(theirs):
            raise TypeError(
                f"the network returned a {type(output).__name__} with {len(ours)} float tensors, and in float "
                f"{len(theirs)}: choose loss='layers', or a function of your own, loss(output, float_output)"
            )
        return torch.stack([compare(*pair) for pair in zip(ours, theirs, strict=True)]).sum()

    return compare_outputs


def divergence(output: Tensor, float_output: Tensor) -> Tensor:
    """KL(p || q) along the axis of channels, averaged over the others; p is the softmax of the float output."""
    axis = channel_axis(output)
    log_p, log_q = float_output.log_softmax(axis), output.log_softmax(axis)
    return (log_p.exp() * (log_p - log_q)).sum(axis).mean()


def cosine_distance(output: Tensor, float_output: Tensor) -> Tensor:
    """1 - cos(y, f) of the vectors along the axis of channels, averaged over the others."""
    return (1 - F.cosine_similarity(output, float_output, dim=channel_axis(output))).mean()


def relative_squared_error(output: Tensor, float_output: Tensor) -> Tensor:
    """|y - f|^2 / |f|^2 of all elements."""
    squares = float_output.square().sum().clamp_min(torch.finfo(float_output.dtype).tiny)
    return (output - float_output).square().sum() / squares


COMPARISONS = {"output": divergence, "cosine": cosine_distance, "mse": relative_squared_error}


def channel_axis(output: Tensor) -> int:
    """The axis of channels: the second of dense outputs (N, C, H, W, ...), and else the last."""
    return 1 if output.dim() > 3 else -1


def layers_loss(compressor: Compressor, batch: Any) -> Tensor:
    """The relative squared error of the layers' outputs to the float network's, averaged over the layers."""
    layers = compressor.topology.layers
    modules = [find_layer(compressor.model, layer.norm or layer.instance_norm or layer.name) for layer in layers]
    with as_float_network(compressor.attachment), torch.no_grad(), _outputs(modules) as wanted:
        call_without_labels(compressor.model, batch)
    with _outputs(modules) as given:
        call_without_labels(compressor.model, batch)
    return torch.stack([relative_squared_error(*pair) for pair in zip(given, wanted, strict=True)]).mean()


@contextmanager
def _outputs(modules: list[nn.Module]) -> Iterator[list[Tensor]]:
    """The outputs that the modules compute inside the block, before quantizers and hooks change them."""
    seen: list[Tensor] = []

    def observe(_arguments: tuple[Any, ...], _keywords: dict[str, Any], output: Tensor) -> None:
        # A copy through which gradients pass: an in-place ReLU may write into the output next.
        seen.append(output.clone())

    handles = [handle for module in dict.fromkeys(modules) for handle in observe_output(module, observe)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
