"""Gathering what one layer reads in the quantized network, and what it returns in the float one."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.baselines.observing import run_to
from bayesbits.baselines.reconstruction import Examples, Reconstruction
from bayesbits.records.topology import Layer


def gather(
    reconstruction: Reconstruction,
    quantized: nn.Module,
    reference: nn.Module,
    batches: list[Any],
    limit: float,
    *,
    asymmetric: bool,
) -> list[Examples]:
    """Inputs and targets of a layer over all batches and calls, by shape; not more than `limit` bytes of them.

    With `asymmetric` the inputs are those of the quantized network, else of the float one; in both cases as the layer's
    own quantizer leaves them. Raises a ValueError where nothing, or nothing finite, reaches the layer.
    """
    layer, quantizer = reconstruction.layer, reconstruction.module.parts.input
    kept: dict[tuple[torch.Size, torch.Size], list[tuple[Tensor, Tensor]]] = {}
    spacing = 0
    for batch in batches:
        wanted = _calls(reference, layer, batch)
        given = _calls(quantized, layer, batch) if asymmetric else wanted
        for (inputs, _), (_, targets) in zip(given, wanted, strict=True):
            inputs, targets = _with_examples(inputs, layer), _with_examples(targets, layer)
            if not spacing:
                in_all = len(batches) * layer.calls * sum(x.numel() * x.element_size() for x in (inputs, targets))
                spacing = max(1, math.ceil(in_all / limit))
            with torch.no_grad():
                inputs = inputs[::spacing] if quantizer is None else quantizer(inputs[::spacing])
                targets = reconstruction.finish(targets[::spacing])
            kept.setdefault((inputs.shape[1:], targets.shape[1:]), []).append((inputs, targets))
    data = [
        Examples(torch.cat([one for one, _ in parts]), torch.cat([one for _, one in parts])) for parts in kept.values()
    ]
    data = [part for part in data if part.inputs.numel()]
    if not data:
        raise ValueError(f"no values reached {layer.name} on these batches")
    if not all(bool(torch.isfinite(part.inputs).all() & torch.isfinite(part.targets).all()) for part in data):
        raise ValueError(f"what {layer.name} reads or returns on these batches is not finite everywhere")
    return data


def _calls(model: nn.Module, layer: Layer, batch: Any) -> list[tuple[Tensor, Tensor]]:
    """What a layer reads and returns on one batch, for each of its calls; copied, as networks write into tensors."""
    calls: list[tuple[Tensor, Tensor]] = []
    run_to(model, layer, batch, lambda read, returned: calls.append((read.clone(), returned.clone())))
    return calls


def _with_examples(x: Tensor, layer: Layer) -> Tensor:
    """x with a first axis that counts examples, which a layer may be called without."""
    axes = 1 if layer.kind == "linear" else len(layer.weight_shape) - 1
    return x.unsqueeze(0) if x.dim() == axes else x
