"""Scores of widths for the solver: by how much the loss is expected to grow where one tensor has b bits.

From gradients, as the diagonal of the second-order term of the loss:

    score[t, b] = 1/2 sum over the elements of F (Q_b(x) - x)^2

x is the tensor in the float network, and F the diagonal of the Fisher matrix, or of the Gauss-Newton matrix of a
squared error: the mean over the examples of the squared gradient with respect to each element. The gradients are not
those of the loss, which is at its minimum, but of the output along a random direction for each example. The covariance
of the directions is the second derivative of the loss with respect to the output, so that one backward pass for each
batch has all gradients; and examples have directions of their own, so that in a weight they do not cancel. Each width
has ranges of its own: those of least squared error, or min/max where that has the smaller score.

Measured: the loss with one tensor at b bits and the others at their widest, less the loss with all at their widest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesbits.baselines.sensitivity_cache import CachedForward
from bayesbits.compression.compressor import Compressor
from bayesbits.nn import Quantizer
from bayesbits.posttraining.front_points import put_range, read_range
from bayesbits.posttraining.losses import COMPARISONS, LossFunction, channel_axis, float_outputs, over_tensors
from bayesbits.posttraining.quantizer_state import as_float_network, quantizers_restored
from bayesbits.records.front import Range
from bayesbits.utils.batches import call_model, count_examples
from bayesbits.utils.modes import gradient_flags_restored
from bayesbits.utils.pytree import tensors_in

WIDE = 16
"""The width from which on ranges are min/max: hardly anything is rounded, and clipping would be the whole error."""

Ranges = dict[str, Range]
"""The ranges of all quantizers, by the tensor's name."""


@dataclass(frozen=True)
class WidthScores:
    """How much the loss is expected to grow, and which range belongs to it, by tensor and width."""

    scores: Mapping[str, Mapping[int, float]]
    ranges: Mapping[str, Mapping[int, Range]]


def fitted_ranges(compressor: Compressor, inputs: list[Any], widths: list[int]) -> dict[int, list[Ranges]]:
    """For every width the ranges to choose from; the compressor keeps its own."""
    quantizers = compressor.attachment.quantizers

    def fit(method: str, bits: int = 8) -> Ranges:
        compressor.calibrate(inputs, method, reference_bits=bits)
        return {name: read_range(quantizer) for name, quantizer in quantizers.items()}

    with quantizers_restored(compressor.attachment):
        whole = fit("minmax")
        return {bits: [whole] if bits >= WIDE else [fit("mse", bits), whole] for bits in widths}


def gradient_scores(
    compressor: Compressor,
    inputs: list[Any],
    labels: list[Any],
    loss: str,
    loss_fn: LossFunction | None,
    seed: int = 0,
) -> WidthScores:
    """Scores from one backward pass for each batch; tensors whose width is not learned have none."""
    model, attachment = compressor.model, compressor.attachment
    learning = {name: q for name, q in attachment.quantizers.items() if q.mode == "learning"}
    ranges = fitted_ranges(compressor, inputs, sorted({bits for q in learning.values() for bits in q.bits}))
    errors = _WeightedErrors(learning, ranges)
    generator = torch.Generator().manual_seed(seed)
    with as_float_network(attachment), gradient_flags_restored(model.parameters()), errors.observing():
        model.requires_grad_(False)
        for index, batch in enumerate(inputs):
            output = call_model(model, batch)
            tensors = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
            if loss == "labels":
                directions = _label_directions(output, tensors, labels[index], loss_fn or F.cross_entropy, generator)
            else:
                directions = [DIRECTIONS[loss](tensor.detach(), generator) for tensor in tensors]
            torch.autograd.backward(tensors, directions)
    return errors.read(sum(map(count_examples, inputs)))


def measured_scores(
    compressor: Compressor,
    inputs: list[Any],
    labels: list[Any],
    loss: str | LossFunction,
    loss_fn: LossFunction | None,
    progress: Callable[[str], None] | None = None,
) -> WidthScores:
    """Scores from a forward pass for each batch, tensor and width; of all widths but the widest."""
    attachment = compressor.attachment
    learning = {name: q for name, q in attachment.quantizers.items() if q.mode == "learning"}
    fitted = fitted_ranges(compressor, inputs, sorted({bits for q in learning.values() for bits in q.bits}))
    ranges = {name: {bits: fitted[bits][0][name] for bits in q.bits} for name, q in learning.items()}
    targets = labels if loss == "labels" else float_outputs(compressor, inputs)
    compare = loss_fn or F.cross_entropy if loss == "labels" else loss
    compare = over_tensors(COMPARISONS[compare]) if isinstance(compare, str) else compare
    settings = [(name, bits) for name, q in learning.items() for bits in q.bits[:-1]]
    grown = dict.fromkeys(settings, 0.0)
    with quantizers_restored(attachment), torch.no_grad():
        for gate in attachment.channel_gates.values():
            gate.fix(torch.ones_like(gate.may_close))
        for name, quantizer in learning.items():
            _put_width(quantizer, quantizer.bits[-1], ranges[name])
        for number, (batch, target) in enumerate(zip(inputs, targets, strict=True)):
            forward = CachedForward(compressor.model, batch)
            reference = float(compare(forward.run(), target))
            for name, bits in settings:
                _put_width(learning[name], bits, ranges[name])
                value = float(compare(forward.run({learning[name]}, record=False), target))
                _put_width(learning[name], learning[name].bits[-1], ranges[name])
                grown[name, bits] += (value - reference) * count_examples(batch)
            if progress is not None:
                progress(f"each tensor alone: {number + 1} of {len(inputs)} batches, {len(settings)} settings each")
    examples = sum(map(count_examples, inputs))
    scores = {name: {bits: grown.get((name, bits), 0.0) / examples for bits in q.bits} for name, q in learning.items()}
    return WidthScores({name: _never_falling(own) for name, own in scores.items()}, ranges)


def _put_width(quantizer: Quantizer, bits: int, ranges: Mapping[int, Range]) -> None:
    put_range(quantizer, ranges[bits])
    quantizer.enter("fixed", bits)


def _never_falling(scores: Mapping[int, float]) -> dict[int, float]:
    """Scores that grow from the widest width on: what is below that is noise of the measurement."""
    kept, most = {}, 0.0
    for bits in sorted(scores, reverse=True):
        kept[bits] = most = max(most, scores[bits])
    return kept


class _WeightedErrors:
    """Sums, over all calls of quantizers, the squared errors of every width times the squared gradients."""

    def __init__(self, quantizers: Mapping[str, Quantizer], ranges: Mapping[int, list[Ranges]]) -> None:
        self.quantizers, self.ranges = quantizers, ranges
        self._sums: dict[tuple[str, int, int], Tensor] = {}

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Inside the block every backward pass of the network adds to the sums."""
        handles = [
            quantizer.register_forward_hook(self._hook(name), with_kwargs=True)
            for name, quantizer in self.quantizers.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, name: str) -> Callable[..., Tensor]:
        def hook(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Tensor) -> Tensor:
            x, stretch = arguments[0].detach().clone(), arguments[1] if len(arguments) > 1 else keywords.get("stretch")
            passed = output.clone() if output.requires_grad else output.detach().clone().requires_grad_()
            passed.register_hook(partial(self._add, name, x, stretch))  # type: ignore[no-untyped-call]
            return passed

        return hook

    @torch.no_grad()
    def _add(self, name: str, x: Tensor, stretch: Tensor | None, gradient: Tensor) -> None:
        importance = gradient.double().square()
        for bits in self.quantizers[name].bits:
            for choice, ranges in enumerate(self.ranges[bits]):
                rounded = round_with(self.quantizers[name], x, stretch, bits, ranges[name])
                value = (importance * (rounded - x).double().square()).sum()
                key = (name, bits, choice)
                self._sums[key] = self._sums[key] + value if key in self._sums else value

    def read(self, examples: int) -> WidthScores:
        """The scores, means over so many examples; a tensor that no gradient reached has scores of zero."""
        scores: dict[str, dict[int, float]] = {}
        ranges: dict[str, dict[int, Range]] = {}
        for name, quantizer in self.quantizers.items():
            scores[name], ranges[name] = {}, {}
            for bits in quantizer.bits:
                found = [
                    float(self._sums.get((name, bits, choice), torch.zeros(()))) / (2 * examples)
                    for choice in range(len(self.ranges[bits]))
                ]
                best = min(range(len(found)), key=found.__getitem__)
                scores[name][bits], ranges[name][bits] = found[best], self.ranges[bits][best][name]
        return WidthScores(scores, ranges)


def round_with(quantizer: Quantizer, x: Tensor, stretch: Tensor | None, bits: int, own: Range) -> Tensor:
    """A tensor as the quantizer rounds it at another width with another range; the quantizer is left as it was."""
    before, mode, fixed_bits = read_range(quantizer), quantizer.mode, quantizer.fixed_bits
    put_range(quantizer, own)
    quantizer.enter("fixed", bits)
    try:
        rounded: Tensor = quantizer.forward(x, stretch)
        return rounded
    finally:
        put_range(quantizer, before)
        quantizer.enter(mode, fixed_bits)


def _label_directions(
    output: Any, tensors: list[Tensor], labels: Any, loss_fn: LossFunction, generator: torch.Generator
) -> list[Tensor]:
    """The gradients of the loss with respect to the output, each example with a random sign."""
    gradients = torch.autograd.grad(loss_fn(output, labels), tensors, retain_graph=True, allow_unused=True)
    directions = []
    for tensor, gradient in zip(tensors, gradients, strict=True):
        if gradient is None:
            directions.append(torch.zeros_like(tensor))
            continue
        signs = _signs((len(tensor), *[1] * (tensor.dim() - 1)), tensor, generator)
        directions.append(len(tensor) * gradient * signs)  # the loss is a mean over the examples
    return directions


def _signs(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randint(2, shape, generator=generator).mul(2).sub(1).to(like)


def _class_directions(output: Tensor, generator: torch.Generator) -> Tensor:
    """p - e_y with a class y drawn from p: the gradient of -log p(y), whose covariance is the KL's second derivative.

    The divergence is a mean over the positions of an output, as its directions are.
    """
    moved = output.movedim(channel_axis(output), -1)
    p = moved.softmax(-1)
    drawn = torch.multinomial(p.flatten(0, -2).cpu(), 1, generator=generator).to(p.device)
    direction = p - F.one_hot(drawn.reshape(p.shape[:-1]), p.shape[-1]).to(p)
    return direction.movedim(-1, channel_axis(output)) / math.sqrt(_positions(moved))


def _cosine_directions(output: Tensor, generator: torch.Generator) -> Tensor:
    """(s - f (f s) / |f|^2) / |f| with random signs s: the covariance is the second derivative of 1 - cos."""
    axis = channel_axis(output)
    signs = _signs(tuple(output.shape), output, generator)
    length: Tensor = output.norm(dim=axis, keepdim=True).clamp_min(torch.finfo(output.dtype).tiny)
    unit = output / length
    across = signs - unit * (unit * signs).sum(axis, keepdim=True)
    return across / length / math.sqrt(_positions(output.movedim(axis, -1)))


def _squared_directions(output: Tensor, generator: torch.Generator) -> Tensor:
    """Random signs times the square root of 2 / |f|^2 of an example: the error is relative to the output's squares."""
    squares = output.square().sum().clamp_min(torch.finfo(output.dtype).tiny) / len(output)
    return _signs(tuple(output.shape), output, generator) * (2 / squares).sqrt()


def _positions(moved: Tensor) -> int:
    """How many vectors of channels, which are the last axis, an example has."""
    return max(1, moved[0].numel() // moved.shape[-1])


DIRECTIONS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "output": _class_directions,
    "cosine": _cosine_directions,
    "mse": _squared_directions,
}
