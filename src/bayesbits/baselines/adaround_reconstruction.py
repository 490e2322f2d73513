"""Learning the rounding of one layer: its output with learned codes is brought close to that of the float network.

The layer's inputs and the outputs that it should return are gathered once and held on the device. The learning loop
never waits for the device: the examples of every step are drawn beforehand, and errors are read at the end. So on a GPU
a step is recorded as a CUDA graph and replayed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.baselines.adaround_rounding import (
    AdaRoundConfig,
    RoundingGrid,
    logits_of,
    rectified_sigmoid,
    regularizer,
)
from bayesbits.baselines.layerwise import along_channels, channel_axis, run_to
from bayesbits.nn.layer import AttachedLayer
from bayesbits.records.topology import Layer
from bayesbits.utils.cuda_graph import Recorder


@dataclass(frozen=True)
class Examples:
    """Inputs of a layer and the outputs that it should return, all of one shape; the first axis counts examples."""

    inputs: Tensor
    """The inputs."""
    targets: Tensor
    """The outputs of the float network, after `Reconstruction.finish`."""


@dataclass(frozen=True)
class Reconstruction:
    """A layer, and the operations on its output before it is compared with that of the float network."""

    layer: Layer
    """The layer."""
    module: AttachedLayer
    """Its module in the quantized network."""
    scale: Tensor | None
    """The factors of the output channels, of a batch norm and of gates; None where there are none."""
    shift: Tensor | None
    """The numbers that are added to the output channels after that; None where there are none."""
    function: Callable[[Tensor], Tensor]
    """The activation function that follows, or the identity."""

    def finish(self, output: Tensor) -> Tensor:
        """The layer's output with scale, shift and function applied: what is compared."""
        if self.scale is not None:
            output = output * along_channels(self.scale, self.layer, output)
        if self.shift is not None:
            output = output + along_channels(self.shift, self.layer, output)
        return self.function(output)

    def output(self, weight: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The finished output of the layer with another weight."""
        size = list(targets.shape[2:]) if self.layer.kind == "conv_transpose" else None
        bias = None if self.module.bias is None else self.module.bias.detach()
        return self.finish(self.module.compute(inputs, weight.to(inputs.dtype), bias, size))

    def error(self, weight: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The squared error with another weight: summed over channels, averaged over examples and positions."""
        difference = (self.output(weight, inputs, targets) - targets).float()
        return difference.square().sum(channel_axis(self.layer, difference)).mean()

    @torch.no_grad()
    def mean_error(self, weight: Tensor, data: list[Examples], batch_size: int) -> Tensor:
        """The squared error over all examples."""
        total, count = torch.zeros((), dtype=torch.float64, device=weight.device), 0
        for part in data:
            pairs = zip(torch.split(part.inputs, batch_size), torch.split(part.targets, batch_size), strict=True)
            for inputs, targets in pairs:
                total += self.error(weight, inputs, targets).double() * len(inputs)
                count += len(inputs)
        return total / count

    def learn(self, grid: RoundingGrid, data: list[Examples], config: AdaRoundConfig) -> Tensor:
        """Learn which codes are rounded up: 1 where one is, else 0."""
        logits = logits_of(grid.fraction).requires_grad_()
        optimizer = torch.optim.Adam([logits], lr=config.lr, capturable=logits.is_cuda)
        schedule = torch.tensor([config.regularization(step) for step in range(config.steps)]).to(logits.device)
        parts, rows = _draw(data, config)
        taken = torch.zeros(1, dtype=torch.int64, device=logits.device)  # steps so far, counted on the device

        def update(part: Examples) -> None:
            row = rows.index_select(0, taken).squeeze(0)
            strength, exponent = schedule.index_select(0, taken).squeeze(0).unbind()
            loss = self.loss(grid, logits, part.inputs[row], part.targets[row], strength, exponent)
            (logits.grad,) = torch.autograd.grad(loss, [logits])
            optimizer.step()
            taken.add_(1)

        recorders: list[Recorder] = []
        for _ in data if logits.is_cuda else ():
            recorders.append(Recorder(logits.device, beside=recorders[0] if recorders else None))
        for index in parts:
            if recorders:
                recorders[index].run(update, data[index])
            else:
                update(data[index])
        return (rectified_sigmoid(logits.detach()) >= 0.5).to(logits.dtype)

    def loss(
        self,
        grid: RoundingGrid,
        logits: Tensor,
        inputs: Tensor,
        targets: Tensor,
        strength: float | Tensor,
        exponent: float | Tensor,
    ) -> Tensor:
        """The squared error with softly rounded codes, plus the weighted regularizer."""
        error = self.error(grid.weight(rectified_sigmoid(logits)), inputs, targets)
        return error + strength * regularizer(logits, exponent)


def _draw(data: list[Examples], config: AdaRoundConfig) -> tuple[list[int], Tensor]:
    """For every step the index of the part of the data that it uses, and as a row the indices of its examples."""
    generator = torch.Generator().manual_seed(config.seed)
    sizes = torch.tensor([len(part.inputs) for part in data], dtype=torch.float64)
    parts = torch.multinomial(sizes, config.steps, replacement=True, generator=generator)
    drawn = torch.rand(config.steps, config.batch_size, dtype=torch.float64, generator=generator)
    return parts.tolist(), (drawn * sizes[parts, None]).long().to(data[0].inputs.device)


def gather(
    reconstruction: Reconstruction,
    quantized: nn.Module,
    reference: nn.Module,
    batches: list[Any],
    limit: float,
    *,
    asymmetric: bool,
) -> list[Examples]:
    """Inputs and targets of a layer over all batches and calls, by shape, of at most `limit` bytes.

    With `asymmetric` the inputs are those of the quantized network, otherwise of the float one; both are quantized by
    the layer's own input quantizer. Raises a ValueError where no values, or infinite ones, reach the layer.
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
        raise ValueError(f"the inputs or the wanted outputs of {layer.name} on these batches are not finite")
    return data


def _calls(model: nn.Module, layer: Layer, batch: Any) -> list[tuple[Tensor, Tensor]]:
    """The input and output of each call of a layer on one batch, copied, as networks may write into them later."""
    calls: list[tuple[Tensor, Tensor]] = []
    run_to(model, layer, batch, lambda layer_input, output: calls.append((layer_input.clone(), output.clone())))
    return calls


def _with_examples(x: Tensor, layer: Layer) -> Tensor:
    """x with a first axis that counts examples; a layer may be called without one."""
    axes = 1 if layer.kind == "linear" else len(layer.weight_shape) - 1
    return x.unsqueeze(0) if x.dim() == axes else x
