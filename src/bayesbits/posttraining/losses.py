"""What post-training asks of the network beside its price: a loss for a batch, by its number.

    labels    loss_fn(output, labels); cross-entropy where no other is given
    output    KL(p || q), averaged over the examples; p and q are the softmax of the float network's outputs and of ours
    layers    the mean over the layers of |y - f|^2 / |f|^2; y is what a layer with its batch norm gives, and f the same
              in the float network

The float network is the live one with its quantizers off, so that there is no copy. Its outputs are computed once; the
outputs of all of its layers would fill the memory, and are computed again for every batch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesbits.compression.compressor import Compressor
from bayesbits.nn.quantized_output import observe_output
from bayesbits.posttraining.modes import in_float
from bayesbits.utils.batches import call_model

LossFunction = Callable[[Any, Any], Tensor]
BatchLoss = Callable[[int], Tensor]


def batch_loss(
    compressor: Compressor, loss: str, inputs: list[Any], labels: list[Any], loss_fn: LossFunction | None = None
) -> BatchLoss:
    """The loss of a batch with the gates as they are, as a function of the batch's number."""
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
    """The logarithms of the float network's probabilities, batch by batch."""
    with in_float(compressor.attachment), torch.no_grad():
        return [_logits(call_model(compressor.model, batch)).log_softmax(-1) for batch in inputs]


def divergence(output: Any, target: Tensor) -> Tensor:
    """KL(p || q), averaged over all but the last axis; `target` holds log p, and q is the softmax of the output."""
    log_q = _logits(output).log_softmax(-1)
    return (target.exp() * (target - log_q)).sum(-1).mean()


def layers_loss(compressor: Compressor, batch: Any) -> Tensor:
    """How far the layers' outputs are from the float network's, relative to their size."""
    layers = compressor.topology.layers
    modules = [compressor.model.get_submodule(layer.norm or layer.name) for layer in layers]
    with in_float(compressor.attachment), torch.no_grad(), _outputs(modules) as wanted:
        call_model(compressor.model, batch)
    with _outputs(modules) as given:
        call_model(compressor.model, batch)
    errors = [
        (ours - theirs).square().sum() / theirs.square().sum().clamp_min(torch.finfo(theirs.dtype).tiny)
        for ours, theirs in zip(given, wanted, strict=True)
    ]
    return torch.stack(errors).mean()


@contextmanager
def _outputs(modules: list[nn.Module]) -> Iterator[list[Tensor]]:
    """What the modules compute inside of the block, call by call; before it is quantized or hooks change it."""
    seen: list[Tensor] = []

    def see(_arguments: tuple[Any, ...], _keywords: dict[str, Any], output: Tensor) -> None:
        # A copy that gradients pass through, as an in-place ReLU may write into the output next.
        seen.append(output.clone())

    handles = [handle for module in dict.fromkeys(modules) for handle in observe_output(module, see)]
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
