"""Learning the rounding of weights, the ranges of weights and activations, and the bias of one unit.

    min over V, beta, bias of  E || f(x~; W(V, beta), beta, bias) - f_float(x) ||^2
                               + sum of strength * c * (1 - |2 h(V) - 1|^b)

c is the curvature of the error along h, the mean of the squared derivatives of f over the weights of an output channel.
With exponent b = 2 the regularizer bends down as much as the error bends up where strength * c is a quarter of the
curvature of one weight. A regularizer that is much weaker leaves h between 0 and 1, and to round it then is little
better than rounding the weight to its nearest code. The curvature is that of the square of the layer's inputs, and
differs by five orders of magnitude between the layers of a network, so that no single number would do.

W(V, beta) are the softly rounded weights of `adaround_rounding`, and x~ is the input with quantization dropped at
random: each element is that of the quantized network with probability 1 - drop, and that of the float network
otherwise. In the same way an element passes every activation quantizer inside of the unit unchanged with probability
drop (Wei et al., *QDrop: Randomly Dropping Quantization for Extremely Low-bit Post-Training Quantization*, 2022). The
unit is a layer (AdaRound) or a block of layers (BRECQ, Li et al., *Pushing the Limit of Post-Training Quantization by
Block Reconstruction*, 2021).

The loop never waits for the device: the examples of every step are drawn beforehand, and errors are read at the end. So
on a GPU a step is recorded as a CUDA graph and replayed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.baselines.adaround_rounding import (
    AdaRoundConfig,
    RoundingGrid,
    learned_step,
    rectified_sigmoid,
    soft_weight,
)
from bayesbits.baselines.reconstruction_units import Examples, LayerUnit, Unit
from bayesbits.nn import Quantizer
from bayesbits.nn.layer import AttachedLayer
from bayesbits.utils.cuda_graph import Recorder
from bayesbits.utils.modes import gradient_flags_restored

_CURVATURE_DRAWS = 8  # of examples and of signs
_SMALLEST_CURVATURE = 1e-3  # of a channel, as a part of the layer's mean: channels that never change are decided too


@dataclass(frozen=True)
class Learned:
    """What was learned for a unit."""

    up: list[Tensor]
    """For every layer: 1 where a weight is rounded up from the code below, else 0."""
    ranges: list[Tensor]
    """The parameters of the ranges."""
    bias: Tensor | None = None
    """What is to be added to the bias of a layer; None where it does not learn."""


@torch.no_grad()
def mean_error(unit: Unit, weights: Sequence[Tensor], data: list[Examples], batch_size: int) -> Tensor:
    """The squared error over all examples."""
    total, count = torch.zeros((), dtype=torch.float64, device=data[0].targets.device), 0
    for part in data:
        for start in range(0, len(part), part.batch(batch_size)):
            here = slice(start, start + part.batch(batch_size))
            targets = part.targets[here]
            output = unit.output([one[here].clone() for one in part.inputs], weights, part)
            total += unit.error(output, targets, part).double() * len(targets)
            count += len(targets)
    return total / count


def learn(
    unit: Unit,
    grids: Sequence[RoundingGrid],
    ranges: Sequence[nn.Parameter],
    data: list[Examples],
    config: AdaRoundConfig,
    *,
    drop: float = 0.0,
) -> Learned:
    """Learn which codes of the unit's weights are rounded up, these parameters of ranges, and the bias of a layer."""
    device = data[0].targets.device
    logits = [grid.first_logits().requires_grad_() for grid in grids]
    steps = [_step(grid, module, ranges) for grid, (_, module) in zip(grids, unit.layers, strict=True)]
    layer = unit if isinstance(unit, LayerUnit) and unit.bias is not None and config.bias_lr else None
    spread = torch.zeros(0) if layer is None else layer.spread(data[0])
    moved = [] if layer is None else [torch.zeros_like(spread).requires_grad_()]  # the bias, in standard deviations
    groups: dict[float, list[Tensor]] = {}  # by rate, as every group is an operation of its own
    for rate, parameters in ((config.lr, logits), (config.range_lr, ranges), (config.bias_lr, moved)):
        groups.setdefault(rate, []).extend(parameters)
    learning = [{"params": group, "lr": rate} for rate, group in groups.items() if group]
    optimizer = torch.optim.Adam(learning, fused=True, capturable=device.type == "cuda")
    schedule = torch.tensor([config.regularization(step) for step in range(config.steps)]).to(device)
    parts, rows = _draw(data, config)
    curvatures = channel_curvatures(unit, grids, data[0], config)
    taken = torch.zeros(1, dtype=torch.int64, device=device)  # steps so far, counted on the device

    def update(part: Examples, rows: Tensor) -> None:
        row = rows.index_select(0, taken).squeeze(0)
        strength, exponent = schedule.index_select(0, taken).squeeze(0).unbind()
        inputs = [one[row] for one in part.inputs]
        if drop:
            inputs = [mixed(here, free[row], drop) for here, free in zip(inputs, part.float_inputs, strict=True)]
        weights = [
            soft_weight(grid, one, strength * curvature, exponent, step())
            for one, grid, curvature, step in zip(logits, grids, curvatures, steps, strict=True)
        ]
        if layer is not None:
            layer.change = moved[0] * spread
        loss = unit.error(unit.output(inputs, weights, part), part.targets[row], part)
        learned = [*logits, *ranges, *moved]
        for parameter, gradient in zip(learned, torch.autograd.grad(loss, learned, allow_unused=True), strict=True):
            parameter.grad = gradient
        optimizer.step()
        taken.add_(1)

    with torch.enable_grad(), _learning_only(ranges), _dropping(unit.quantizers, drop), _seeded(config.seed, device):
        recorders: list[Recorder] = []
        for _ in data if device.type == "cuda" else ():
            recorders.append(Recorder(device, beside=recorders[0] if recorders else None))
        for index in parts:
            if recorders:
                recorders[index].run(_closed(update, data[index], rows[index]))
            else:
                update(data[index], rows[index])
    for parameter in ranges:
        parameter.grad = None
    if layer is not None:
        layer.change = None
    return Learned(
        [(rectified_sigmoid(one.detach()) >= 0.5).to(one.dtype) for one in logits],
        [parameter.detach().clone() for parameter in ranges],
        (moved[0] * spread).detach() if moved else None,
    )


def _step(grid: RoundingGrid, module: AttachedLayer, ranges: Sequence[nn.Parameter]) -> Callable[[], Tensor]:
    """The step of a weight, which follows its range where that learns."""
    quantizer, learned = module.parts.weight, set(map(id, ranges))
    assert quantizer is not None
    follows = any(id(parameter) in learned for parameter in quantizer.range_parameters())
    return learned_step(grid, module) if follows else lambda: grid.step


def channel_curvatures(
    unit: Unit, grids: Sequence[RoundingGrid], data: Examples, config: AdaRoundConfig
) -> list[Tensor]:
    """For every layer the mean of (d output / d h)^2 over the weights that share a step, in the form of the step.

    Half of the second derivative of the error, without that of the unit: sums of squared derivatives over all outputs
    are the expectation of the squared derivative of the outputs' sum with random signs.
    """
    device, generator = data.targets.device, torch.Generator().manual_seed(config.seed)
    weights = [grid.weight(grid.fraction).requires_grad_() for grid in grids]
    totals = [torch.zeros_like(grid.step) for grid in grids]
    for _ in range(_CURVATURE_DRAWS):
        row = torch.randint(len(data), (data.batch(config.batch_size),), generator=generator).to(device)
        with torch.enable_grad():
            output = unit.output([one[row] for one in data.inputs], weights, data)
            signs = torch.randint(0, 2, output.shape, generator=generator).to(output) * 2 - 1
            channels = unit.error(torch.ones_like(signs), torch.zeros_like(signs), data)
            gradients = torch.autograd.grad(
                (output * signs).sum() * (channels / output.numel()).sqrt(), weights, allow_unused=True
            )
        for total, grid, gradient in zip(totals, grids, gradients, strict=True):
            if gradient is not None:
                square = (gradient * grid.step).square()
                total += square.sum_to_size(grid.step.shape) * (grid.step.numel() / square.numel() / _CURVATURE_DRAWS)
    return [total.clamp_min(_SMALLEST_CURVATURE * total.mean()) for total in totals]


def _closed(update: Any, part: Examples, rows: Tensor) -> Any:
    """A step without arguments: a recorder would copy those into the place of its record, every time."""
    return lambda: update(part, rows)


def mixed(quantized: Tensor, free: Tensor, drop: float) -> Tensor:
    """Each element that of the quantized network, or with probability `drop` that of the float one."""
    if not quantized.is_floating_point():
        return quantized
    return torch.where(torch.rand_like(quantized) < drop, free, quantized)


@contextmanager
def _dropping(quantizers: Sequence[Quantizer], drop: float) -> Iterator[None]:
    """Inside the block every element passes these quantizers unchanged with this probability."""
    handles = [
        quantizer.register_forward_hook(lambda _, inputs, output: mixed(output, inputs[0].to(output.dtype), drop))
        for quantizer in quantizers
        if drop
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _learning_only(ranges: Sequence[nn.Parameter]) -> Iterator[None]:
    """Inside the block these parameters require gradients."""
    with gradient_flags_restored(ranges):
        for parameter in ranges:
            parameter.requires_grad_(True)
        yield


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Inside the block random numbers follow from the seed; afterwards those of the user go on as before."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _draw(data: list[Examples], config: AdaRoundConfig) -> tuple[list[int], list[Tensor]]:
    """For every step the part of the data that it uses; and for every part, by step, the indices of its examples."""
    generator = torch.Generator().manual_seed(config.seed)
    sizes = torch.tensor([len(part) for part in data], dtype=torch.float64)
    parts = torch.multinomial(sizes, config.steps, replacement=True, generator=generator)
    rows = []
    for part in data:
        drawn = torch.rand(config.steps, part.batch(config.batch_size), dtype=torch.float64, generator=generator)
        rows.append((drawn * len(part)).long().to(part.targets.device))
    return parts.tolist(), rows
