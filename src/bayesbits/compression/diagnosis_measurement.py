"""Measuring a diagnosis: run the network as a search does, look at the values, and take the gradients of the gates.

Gates draw as in training; everything else is in evaluation mode, so that batch norm uses its statistics without moving
them and dropout adds no noise. Gradients are asked for by name, so that no `.grad` is touched, and training flags,
modes, buffers, the gates' drawn values and the state of the random generators are put back.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.compression.diagnosis import Diagnosis, TensorDiagnosis
from bayesbits.compression.observers import network_restored, observing
from bayesbits.compression.range_estimation import round_to_bits
from bayesbits.compression.sampling import SAMPLE, evenly_spaced, in_rows
from bayesbits.nn import Gates, Quantizer
from bayesbits.utils.batches import call_without_labels


def diagnose(
    model: nn.Module,
    quantizers: Mapping[str, Quantizer],
    penalty: Callable[[], Tensor],
    batches: Iterable[Any],
    loss_fn: Callable[[Any, Any], Tensor],
    *,
    draws: int = 4,
) -> Diagnosis:
    """Look at every quantizer inside `model`, of weights and activations, by its tensor's name.

    `penalty` gives the penalty as the loss has it, its weight included. `batches` yields pairs of inputs (as for
    `call_model`) and targets, and `loss_fn(output, targets)` the task's loss. Each batch runs `draws` times.
    """
    if draws < 1:
        raise ValueError(f"at least one draw is needed, got draws={draws}")
    observers = {name: _Observer(quantizer) for name, quantizer in quantizers.items()}
    totals = [torch.zeros_like(quantizer.gates.logits) for quantizer in quantizers.values()]
    count = 0
    with _as_found(model) as gates, observing(quantizers, observers), torch.enable_grad():
        model.eval()
        for member in gates:
            member.train()
        for number, batch in enumerate(batches):
            inputs, targets = _pair(batch)
            for draw in range(draws):
                for observer in observers.values():
                    observer.looking = draw == 0
                for member in gates:
                    member._drawn = None  # a draw of an earlier pass belongs to the graph of that pass
                loss = _checked(
                    loss_fn(call_without_labels(model, inputs), targets), f"the loss of batch {number} (the first is 0)"
                )
                totals = [total + one for total, one in zip(totals, _gradients(loss, quantizers), strict=True)]
                count += 1
        if count == 0:
            raise ValueError("a diagnosis needs at least one batch, and there was none")
        of_penalty = _gradients(_checked(penalty(), "the penalty"), quantizers)
    return Diagnosis(
        tuple(
            _findings(name, quantizer, observers[name], total / count, one)
            for (name, quantizer), total, one in zip(quantizers.items(), totals, of_penalty, strict=True)
        )
    )


@contextmanager
def _as_found(model: nn.Module) -> Iterator[list[Gates]]:
    """The gates of the model; afterwards they, the rest of the model and the random generators are as before."""
    gates = [module for module in model.modules() if isinstance(module, Gates)]
    drawn = [member._drawn for member in gates]
    devices = {tensor.device.index for tensor in (*model.parameters(), *model.buffers()) if tensor.is_cuda}
    with network_restored(model), torch.random.fork_rng(devices=sorted(devices)):
        try:
            yield gates
        finally:
            for member, values in zip(gates, drawn, strict=True):
                member._drawn = values


class _Observer:
    """A forward pre-hook that sums up, on the device, what rounding to each width would lose."""

    def __init__(self, quantizer: Quantizer) -> None:
        self.quantizer = quantizer
        self.widths = sorted({*quantizer.bits, quantizer.fixed_bits or quantizer.bits[0]})
        self.looking = True
        self.beta: Tensor | None = None  # the largest end of the range that was seen
        self.sums: Tensor | None = None  # values, values outside of the range, their squares, squared errors by width

    def __call__(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if not self.looking or inputs[0].numel() == 0:
            return
        (beta, alpha), signed = self.quantizer.range_of(inputs[0]), self.quantizer.signed
        self.beta = beta if self.beta is None else torch.maximum(self.beta, beta)
        rows = evenly_spaced(in_rows(inputs[0], beta.numel()), max(1, SAMPLE // beta.numel()))
        ends = beta.reshape(-1, 1)
        outside = (rows > ends) | (rows < ((-ends if signed else 0.0) if alpha is None else alpha))
        errors = [(round_to_bits(rows, beta, width, signed, alpha) - rows).square().sum() for width in self.widths]
        sums = torch.stack([torch.ones_like(rows).sum(), outside.to(rows).sum(), rows.square().sum(), *errors])
        self.sums = sums if self.sums is None else self.sums + sums

    def read(self) -> tuple[float, dict[int, float]]:
        """The percentage of values outside of the range, and the signal-to-noise ratio at each width."""
        if self.sums is None:
            return 0.0, {}
        count, outside, signal, *errors = self.sums.tolist()
        return 100 * outside / count, {
            width: _decibel(signal, error) for width, error in zip(self.widths, errors, strict=True)
        }


def _decibel(signal: float, error: float) -> float:
    if error == 0:
        return math.inf
    return 10 * math.log10(signal / error) if signal > 0 else -math.inf


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise TypeError(f"a diagnosis needs batches that are pairs of inputs and targets, got {type(batch).__name__}")
    return batch[0], batch[1]


def _checked(value: Tensor, what: str) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ValueError(f"{what} must be a tensor with one number")
    if not math.isfinite(value.item()):
        raise ValueError(f"{what} is {value.item()}: there is no gradient to diagnose")
    return value.reshape(())


def _gradients(value: Tensor, quantizers: Mapping[str, Quantizer]) -> list[Tensor]:
    """Of the logits of every quantizer; zero where they play no part."""
    logits = [quantizer.gates.logits for quantizer in quantizers.values()]
    wanted = [one for one in logits if one.requires_grad]
    if not value.requires_grad or not wanted:
        return [torch.zeros_like(one) for one in logits]
    found = iter(torch.autograd.grad(value, wanted, allow_unused=True, materialize_grads=True))
    return [next(found) if one.requires_grad else torch.zeros_like(one) for one in logits]


def _findings(
    name: str, quantizer: Quantizer, observer: _Observer, of_task: Tensor, of_penalty: Tensor
) -> TensorDiagnosis:
    clipped, signal_to_noise = observer.read()
    gated = quantizer.bits[1:] if quantizer.gates.open_first else quantizer.bits
    probabilities = quantizer.gates.probability_on().tolist()
    return TensorDiagnosis(
        name=name,
        mode=quantizer.mode,
        bits=quantizer.effective_bits(),
        beta=0.0 if observer.beta is None else observer.beta.max().item(),
        clipped=clipped,
        signal_to_noise=signal_to_noise,
        probability_on=dict(zip(gated, probabilities, strict=True)),
        task_gradient=dict(zip(gated, of_task.tolist(), strict=True)),
        penalty_gradient=dict(zip(gated, of_penalty.tolist(), strict=True)),
    )
