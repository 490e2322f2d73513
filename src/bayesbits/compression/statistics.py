"""Measuring the statistics of a network's tensors: histograms, what rounding does to them, and the error by layer.

The network runs twice on a few examples. First without rounding: there every layer, and every product of two
activations, is also computed with its own rounding, on the same input, which is its error alone. Then with all
rounding: there its output has the errors of everything in front of it. The output of a layer is what it emits when it
is deployed: that behind the batch norm which is folded into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.compression.compressor import Compressor
from bayesbits.compression.observers import network_restored, observing
from bayesbits.compression.range_estimation import round_to_bits
from bayesbits.compression.sampling import sampled_rows, unstretched
from bayesbits.compression.signal_to_noise import SignalToNoise, decibel, sample, sample_of
from bayesbits.functional.grid import step_size
from bayesbits.nn import Quantizer
from bayesbits.nn.activation_product import ActivationProduct
from bayesbits.nn.layer import AttachedLayer
from bayesbits.nn.quantized_output import QuantizedOutput
from bayesbits.nn.weight_product import attached_activation_products, attached_products
from bayesbits.records.tensor_statistics import Histogram, LayerError, TensorStatistics
from bayesbits.utils.batches import batched_tensors, call_model

BINS = 64
_MARGIN = 1.05  # by how much a histogram is wider than the range

Compute = Callable[[], Any]
Emitted = Callable[[Any], Tensor]
Modes = dict[Quantizer, tuple[str, int | None]]


def measure_statistics(compressor: Compressor, inputs: Any) -> TensorStatistics:
    """The statistics of a network with final widths, on the inputs of one batch; the network stays as it is.

    Args:
        compressor: A network with a plan that is fixed.
        inputs: What the network is called with: a tensor, a tuple or a dict. A few examples are enough.
    """
    model, attachment = compressor.model, compressor.attachment
    quantizers: dict[str, Quantizer] = dict(attachment.quantizers)
    observers = {name: _Observer(name, quantizer) for name, quantizer in quantizers.items()}
    modules: dict[str, nn.Module] = {**dict(model.named_modules()), **attached_products(model)}
    parts = [
        _layer(layer.name, module)
        for layer in compressor.topology.layers
        if isinstance(module := modules.get(layer.name), AttachedLayer)
    ]
    parts += [_product(name, product) for name, product in attached_activation_products(model).items()]
    order: list[_Part] = []
    with network_restored(model), torch.no_grad():
        model.eval()
        modes: Modes = {quantizer: (quantizer.mode, quantizer.fixed_bits) for quantizer in quantizers.values()}
        for quantizer in quantizers.values():
            quantizer.turn_off()
        with _intercepted(parts, lambda part, compute: part.in_float(compute, modes, order)):
            float_output = call_model(model, inputs)
        for quantizer, (mode, bits) in modes.items():
            quantizer.enter(mode, bits)
        with _intercepted(parts, _Part.rounded), observing(quantizers, observers, attachment.topology.clips):
            output = call_model(model, inputs)
    whole = SignalToNoise()
    whole.compare(sample_of(float_output), sample_of(output))
    tensors = batched_tensors(inputs)
    return TensorStatistics(
        examples=len(tensors[0]) if tensors else 0,
        tensors=tuple(found for one in observers.values() if (found := one.histogram()) is not None),
        layers=tuple(part.error() for part in order),
        output=whole.decibel,
    )


class _Observer:
    """A forward pre-hook on a quantizer, which takes its values the first time that it runs."""

    def __init__(self, name: str, quantizer: Quantizer) -> None:
        self.name, self.quantizer = name, quantizer
        self.rows: Tensor | None = None
        self.emitted: Tensor | None = None
        """What the quantizer makes of these rows, where it is no plain rounding at the final width."""
        self.ends: tuple[Tensor, Tensor | None] | None = None

    def __call__(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self.rows is not None or inputs[0].numel() == 0:
            return
        stretch = inputs[1] if len(inputs) > 1 else None
        self.ends = self.quantizer.range_of(inputs[0])
        beta = self.ends[0]
        # The grid of a weight in front of a batch norm is stretched, and its rows are divided by that.
        count = beta.numel() if stretch is None else inputs[0].shape[0]
        self.rows = sampled_rows(unstretched(inputs[0], stretch), count)
        if not self.quantizer.is_plain:
            self.emitted = sampled_rows(unstretched(self.quantizer.forward(inputs[0], stretch), stretch), count)

    def histogram(self) -> Histogram | None:
        """The histogram; None where the quantizer did not run, or does not round."""
        quantizer, rows = self.quantizer, self.rows
        if rows is None or quantizer.mode == "off" or not torch.isfinite(rows).all():
            return None
        assert self.ends is not None
        beta, codes = self.ends[0].to(rows).reshape(-1), None
        if (code := quantizer.last_code) is not None:
            codes = 1 + code * (1 + quantizer.signed)
            beta = step_size(beta, quantizer.effective_bits(), quantizer.signed) * (code + quantizer.signed / 2)
        alpha = None if self.ends[1] is None else self.ends[1].to(rows)
        widths = sorted({*quantizer.bits, quantizer.effective_bits()} - {0})
        expanded = beta.expand(len(rows)) if beta.numel() == 1 else beta
        signal = rows.square().sum().item()
        rounded = {width: round_to_bits(rows, expanded, width, quantizer.signed, alpha) for width in widths}
        if self.emitted is not None and quantizer.effective_bits() > 0:
            rounded[quantizer.effective_bits()] = self.emitted
        noise = {str(width): decibel(signal, (own - rows).square().sum().item()) for width, own in rounded.items()}
        several = beta.numel() > 1
        values = rows / expanded.reshape(-1, 1) if several else rows
        high = 1.0 if several else beta.item()
        low = alpha.item() if alpha is not None else -high if quantizer.signed else 0.0
        outside = ((values > high) | (values < low)).to(values).mean().item()
        first = min(low * _MARGIN, values.min().item())
        last = max(high * _MARGIN, values.max().item())
        counts = torch.histc(values.float().flatten(), BINS, min=first, max=last)
        return Histogram(
            name=self.name, bits=quantizer.effective_bits(), low=low, high=high, ranges=beta.numel(), first=first,
            last=last, counts=tuple(int(count) for count in counts.tolist()), clipped=100 * outside,
            signal_to_noise=noise, codes=codes,
        )  # fmt: skip


class _Part:
    """A layer or a product: samples of its float output, and the errors that were found.

    Its `method` computes what it goes on with, from which `emitted` makes a sample of its output.
    """

    def __init__(
        self, name: str, module: nn.Module, method: str, quantizers: Sequence[Quantizer | None], emitted: Emitted
    ) -> None:
        self.name, self.module, self.method, self.emitted = name, module, method, emitted
        self.quantizers = [one for one in quantizers if one is not None]
        self.float_outputs: list[Tensor] = []  # one for each call in a forward pass
        self.calls = 0
        self.alone, self.together = SignalToNoise(), SignalToNoise()

    def in_float(self, compute: Compute, modes: Modes, order: list[_Part]) -> Any:
        """A call in the network without rounding; returns what the network goes on with."""
        if not self.float_outputs:
            order.append(self)
        result = compute()
        exact = self.emitted(result)
        for quantizer in self.quantizers:
            quantizer.enter(*modes[quantizer])
        rounded = self.emitted(compute())
        for quantizer in self.quantizers:
            quantizer.turn_off()
        self.alone.compare(exact, rounded)
        self.float_outputs.append(exact)
        return result

    def rounded(self, compute: Compute) -> Any:
        """A call in the network with all rounding."""
        result = compute()
        if self.calls < len(self.float_outputs):
            self.together.compare(self.float_outputs[self.calls], self.emitted(result))
        self.calls += 1
        return result

    def error(self) -> LayerError:
        return LayerError(self.name, self.alone.decibel, self.together.decibel)


def _layer(name: str, module: AttachedLayer) -> _Part:
    """A layer, whose `quantized` computes its input, weight and bias."""
    return _Part(name, module, "quantized", (module.parts.weight, module.parts.input), partial(_output, module))


def _product(name: str, product: ActivationProduct) -> _Part:
    """A product of two activations."""
    return _Part(name, product, "forward", (product.parts.left, product.parts.right), sample)


def _output(module: AttachedLayer, multiplied: tuple[Tensor, Tensor, Tensor | None]) -> Tensor:
    """A sample of what a layer emits: its output, behind the batch norm that is folded into it."""
    output, norm = module.compute(*multiplied), module.parts.norm_behind
    if norm is None:
        return sample(output)
    if not isinstance(norm, QuantizedOutput):
        return sample(norm(output))
    quantizer = norm.bayesbits_output.quantizer  # of the addition behind it, which is no part of this layer
    mode = quantizer.mode, quantizer.fixed_bits
    quantizer.turn_off()
    emitted = sample(norm(output))
    quantizer.enter(*mode)
    return emitted


@contextmanager
def _intercepted(parts: Sequence[_Part], called: Callable[[_Part, Compute], Any]) -> Iterator[None]:
    """Inside the block `called` answers in the place of a part's method, and is given the function that computes it."""
    for part in parts:
        setattr(part.module, part.method, _interception(part, called))
    try:
        yield
    finally:
        for part in parts:
            delattr(part.module, part.method)


def _interception(part: _Part, called: Callable[[_Part, Compute], Any]) -> Callable[..., Any]:
    compute = getattr(part.module, part.method)

    def answer(*args: Any) -> Any:
        return called(part, lambda: compute(*args))

    return answer
