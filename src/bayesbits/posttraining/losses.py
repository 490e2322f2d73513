"""The losses of post-training, each as a function of the index of a batch.

    labels    loss_fn(output, labels); by default cross-entropy
    output    KL(p || q), averaged over the examples; p is the softmax of the float network's output, q that of ours
    layers    the mean over the layers of |y - f|^2 / |f|^2; y is the output of a layer with its batch norm, and f the
              same output in the float network

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
from bayesbits.nn.product import find_layer
from bayesbits.nn.quantized_output import observe_output
from bayesbits.posttraining.quantizer_state import as_float_network
from bayesbits.utils.batches import call_model, call_without_labels

LossFunction = Callable[[Any, Any], Tensor]
BatchLoss = Callable[[int], Tensor]


def batch_loss(
    compressor: Compressor, loss: str, inputs: list[Any], labels: list[Any], loss_fn: LossFunction | None = None
) -> BatchLoss:
    """The loss of a batch with the present gates, as a function of the batch's index."""
    model = compressor.model
    if loss == "layers":
        return lambda index: layers_loss(compressor, inputs[index])
    if loss == "output":
        targets: list[Any] = float_log_probabilities(compressor, inputs)
        compare: LossFunction = divergence
    else:
        targets, compare = labels, loss_fn or F.cross_entropy
    return lambda index: compare(call_model(model, inputs[index]), targets[index])


def float_log_probabilities(compressor: Compressor, inputs: list[Any]) -> list[Tensor]:
    """The log-softmax of the float network's outputs, batch by batch."""
    with as_float_network(compressor.attachment), torch.no_grad():
        return [_logits(call_without_labels(compressor.model, batch)).log_softmax(-1) for batch in inputs]


def divergence(output: Any, target: Tensor) -> Tensor:
    """KL(p || q), averaged over all but the last axis; `target` holds log p, and q is the softmax of the output."""
    log_q = _logits(output).log_softmax(-1)
    return (target.exp() * (target - log_q)).sum(-1).mean()


def layers_loss(compressor: Compressor, batch: Any) -> Tensor:
    """The relative squared error of the layers' outputs to the float network's, averaged over the layers."""
    layers = compressor.topology.layers
    modules = [find_layer(compressor.model, layer.norm or layer.name) for layer in layers]
    with as_float_network(compressor.attachment), torch.no_grad(), _outputs(modules) as wanted:
        call_without_labels(compressor.model, batch)
    with _outputs(modules) as given:
        call_without_labels(compressor.model, batch)
    errors = [
        (ours - theirs).square().sum() / theirs.square().sum().clamp_min(torch.finfo(theirs.dtype).tiny)
        for ours, theirs in zip(given, wanted, strict=True)
    ]
    return torch.stack(errors).mean()


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


def _logits(output: Any) -> Tensor:
    if not isinstance(output, Tensor):
        raise TypeError(
            f"loss='output' compares logits, and the network returned a {type(output).__name__}: choose loss='layers', "
            "or wrap the network so that it returns its logits alone"
        )
    return output
