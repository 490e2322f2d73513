"""Layers with quantizers attached: the user's own modules, which compute with quantized inputs and weights.

A module is attached by exchanging its class (see `nn.exchange`). What it computes with lies in its attribute `parts`,
beside and not among its parameters and children; the quantizers and gates themselves are owned by the network's
`Attachment`. An operand of a residual addition is quantized inside of the module whose output it is, before any hook:
what a hook sees, the deployed network has too.

Batch norm behind a layer is folded for rounding only: w_eff = Q(w f) / f with f = gamma / sqrt(var + eps), so that the
batch norm stays where it is and folding it at deployment is exact. That is w rounded on a grid which is stretched by
1 / |f|, channel by channel: folding needs no pass over the weight. f is detached: through 1 / f gamma would get huge
gradients. A factor of 0 hides the weight from the output, but not from gamma, which comes back only if batch norm has
something to scale: there the weight is rounded as if f were 1.

Once widths are final, biases are too: an integer layer adds its bias as a whole number of input step times weight
step, which at few bits is a coarse grid. So the network that is evaluated and fine-tuned rounds them as the deployed
one does: a layer's own bias, or, where a batch norm with frozen statistics is folded into the layer, that one's shift.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesbits.functional.custom_ops import snapshot
from bayesbits.functional.grid import INTEGER_BITS, bias_codes
from bayesbits.nn.channel_gate import ChannelFollower, ChannelGate
from bayesbits.nn.exchange import Exchanged, exchange_class, restore_class
from bayesbits.nn.gated_quantizer import GatedQuantizer
from bayesbits.utils.torch_private import BatchNorm, ConvNd, ConvTransposeNd, conv_forward, output_padding

_CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@dataclass
class Calibration:
    """Whether the ranges of a network's activations are known; one object, shared by all of its layers."""

    known: bool = False

    def check(self) -> None:
        """Raise before anything is computed with ranges that nobody has set."""
        if not self.known:
            raise RuntimeError(
                "the ranges of the activations are not known yet: call compressor.calibrate(batches), "
                "or load a state_dict that has them"
            )


@dataclass
class Parts:
    """What is attached to a module; any of it may be missing."""

    weight: GatedQuantizer | None = None
    input: GatedQuantizer | None = None
    gate: ChannelGate | ChannelFollower | None = None
    """Gates the output channels here; where a batch norm follows, it has the gate instead."""
    norm: BatchNorm | None = None
    """Of a layer: the batch norm whose factor is folded into the weight for rounding."""
    layer: "AttachedLayer | None" = None
    """Of a batch norm: the layer that it is folded into when that is deployed."""
    rounds_bias: bool = False
    """Of a layer: its bias is deployed as it is, with no batch norm behind it."""
    calibration: Calibration = field(default_factory=lambda: Calibration(known=True))


@dataclass
class Output:
    """What is attached to a module whose output is the operand of a residual addition."""

    quantizer: GatedQuantizer
    name: str
    calibration: Calibration
    forward: Callable[..., Any] | None = None
    """The `forward` that was set on the module itself and not on its class."""


def on_grid(bias: Tensor, step: Tensor) -> Tensor:
    """A bias on its grid; gradients pass straight through."""
    bias_now, step = bias.detach(), step.detach()
    return bias + (bias_codes(bias_now, step) * step.double() - bias_now.double()).to(bias.dtype)


def _autocast_dtype(x: Tensor) -> torch.dtype | None:
    """What autocast would turn x into in front of a layer: quantizers write that themselves, instead of twice."""
    if x.dtype != torch.float32 or x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return None
    return torch.get_autocast_dtype(x.device.type)


def batch_norm_factor(norm: BatchNorm) -> Tensor:
    """What a batch norm with frozen statistics multiplies each channel with: gamma / sqrt(var + eps), detached."""
    assert norm.running_var is not None
    factor = torch.rsqrt(snapshot(norm.running_var) + norm.eps)
    return factor if norm.weight is None else factor * norm.weight.detach()


class AttachedLayer(Exchanged):
    """Mixed into the class of a convolution or linear layer."""

    parts: Parts
    weight: nn.Parameter
    bias: nn.Parameter | None

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:  # noqa: A002 (torch's name)
        parts = self.parts
        parts.calibration.check()
        if parts.input is not None:
            input = parts.input(input, dtype=_autocast_dtype(input))  # noqa: A001
        # Where the weight is multiplied by gates next, it keeps its precision until then.
        weight = self.effective_weight(_autocast_dtype(self.weight) if parts.gate is None else None)
        bias: Tensor | None = self.bias
        if bias is not None and parts.rounds_bias and (step := self.bias_step()) is not None:
            bias = on_grid(bias, step)
        if parts.gate is not None:
            values = parts.gate.values().to(weight.dtype)
            weight = weight * self.along_outputs(values)
            bias = None if bias is None else bias * values
        return self.compute(input, weight, bias, output_size)

    def compute(self, x: Tensor, weight: Tensor, bias: Tensor | None, output_size: list[int] | None = None) -> Tensor:
        """What the layer computes, with the weight and bias that are given."""
        if isinstance(self, ConvTransposeNd):
            axes = self.weight.dim() - 2
            padding = output_padding(self, x, output_size)
            return _CONV_TRANSPOSE[axes](
                x, weight, bias, self.stride, self.padding, padding, self.groups, self.dilation
            )
        if isinstance(self, ConvNd):
            return conv_forward(self, x, weight, bias)
        return F.linear(x, weight, bias)

    def along_outputs(self, values: Tensor) -> Tensor:
        """A vector over the output channels in a shape that broadcasts against the weight."""
        spatial = [1] * (self.weight.dim() - 2)
        if not isinstance(self, ConvTransposeNd):
            return values.reshape(-1, 1, *spatial)
        # Axis 0 holds the inputs of all groups, axis 1 the outputs of one.
        inputs, outputs = self.weight.shape[0] // self.groups, self.weight.shape[1]
        spread = values.reshape(self.groups, 1, outputs).expand(self.groups, inputs, outputs)
        return spread.reshape(-1, outputs, *spatial)

    def fold_factor(self) -> Tensor | None:
        """gamma / sqrt(var + eps) of every output channel; None without a batch norm to fold."""
        norm = self.parts.norm
        return None if norm is None or norm.running_var is None else batch_norm_factor(norm)

    def bias_step(self) -> Tensor | None:
        """The step of the deployed bias, of all output channels or of each; None where it is not an integer."""
        for quantizer in (self.parts.weight, self.parts.input):
            if quantizer is None or quantizer.mode != "fixed" or not 0 < (quantizer.fixed_bits or 0) <= INTEGER_BITS:
                return None
        assert self.parts.weight is not None
        assert self.parts.input is not None
        return self.parts.input.step() * self.parts.weight.step()

    def folded_weight(self) -> Tensor:
        """The weight as it is deployed, before rounding."""
        factor = self.fold_factor()
        return self.weight if factor is None else self.weight * self.along_outputs(factor)

    def effective_weight(self, dtype: torch.dtype | None = None) -> Tensor:
        """The quantized weight, with the factor of the batch norm divided out again; in its own or another dtype."""
        if self.parts.weight is None:
            return self.weight
        weight, stretch = self._for_rounding()
        quantized: Tensor = self.parts.weight(weight, stretch, dtype)
        return quantized.transpose(0, 1) if weight is not self.weight else quantized

    def folded_codes(self) -> Tensor:
        """The integer codes of the folded weight: those of the effective weight, with the signs of the factors."""
        assert self.parts.weight is not None
        weight, stretch = self._for_rounding()
        codes = self.parts.weight.codes(weight.detach(), stretch)
        codes = codes.transpose(0, 1) if weight is not self.weight else codes
        factor = self.fold_factor()
        return codes if factor is None else codes * self.along_outputs(factor.sign()).to(codes.dtype)

    def _for_rounding(self) -> tuple[Tensor, Tensor | None]:
        """The weight with its output channels on axis 0, and by how much the grid of each is stretched."""
        factor = self.fold_factor()
        if factor is None:
            return self.weight, None
        stretch = torch.where(factor == 0, 1.0, factor.abs()).reciprocal()
        return (self.weight.transpose(0, 1) if isinstance(self, ConvTransposeNd) else self.weight), stretch


class AttachedNorm(Exchanged):
    """Mixed into the class of a batch norm: scale and shift are multiplied by the gate, which costs no pass over x."""

    parts: Parts
    is_torchs_own: bool
    """The class is one of torch's, whose forward is known."""

    @classmethod
    def members(cls, original: type[nn.Module]) -> dict[str, Any]:
        return {"is_torchs_own": original in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)}

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        assert isinstance(self, BatchNorm)
        gate = self.parts.gate
        values = None if gate is None else gate.values().to(input.dtype if self.weight is None else self.weight.dtype)
        if not self.is_torchs_own:
            result: Tensor = super().forward(input)
            shape = [1, -1] + [1] * (input.dim() - 2)
            shift = self.effective_shift()
            if shift is not None and shift is not self.bias:
                moved = shift if self.bias is None else shift - self.bias
                result = result + moved.detach().to(result.dtype).reshape(shape)
            return result if values is None else result * values.reshape(shape)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        keeps_statistics = not self.training or self.track_running_stats
        weight: Tensor | None = self.weight
        bias = self.effective_shift()
        if values is not None:
            weight = values if weight is None else weight * values
            bias = None if bias is None else bias * values
        return F.batch_norm(
            input,
            self.running_mean if keeps_statistics else None,
            self.running_var if keeps_statistics else None,
            weight,
            bias,
            self.training or self.running_mean is None,
            momentum,
            self.eps,
        )

    def effective_shift(self) -> Tensor | None:
        """What batch norm adds last, such that the folded bias lies on its grid where that is final."""
        assert isinstance(self, BatchNorm)
        layer = self.parts.layer
        step = None if layer is None or self.training or self.running_mean is None else layer.bias_step()
        if step is None:
            return self.bias
        assert layer is not None
        assert self.running_mean is not None
        factor = batch_norm_factor(self)
        if layer.parts.norm is not self:  # the factor is not in the codes (tied weights), but in the steps
            step = torch.where(factor == 0, step, step * factor.abs())
        mean = self.running_mean if layer.bias is None else self.running_mean - layer.bias.detach()
        shift = torch.zeros_like(factor) if self.bias is None else self.bias
        folded = shift - mean * factor
        return shift + (on_grid(folded, step) - folded).detach()


class QuantizedOutput(Exchanged):
    """Mixed into the class of a module whose output is the operand of a residual addition."""

    bayesbits_output: Output

    @classmethod
    def members(cls, original: type[nn.Module]) -> dict[str, Any]:
        @functools.wraps(original.forward)
        def forward(self: Any, *arguments: Any, **keywords: Any) -> Tensor:
            attached: Output = self.bayesbits_output
            attached.calibration.check()
            if attached.forward is None:
                output = original.forward(self, *arguments, **keywords)
            else:
                output = attached.forward(*arguments, **keywords)
            if not isinstance(output, Tensor):
                raise TypeError(f"{attached.name} returned {type(output).__name__} where a tensor was traced")
            result: Tensor = attached.quantizer(output)
            return result

        return {"forward": forward}


def attach_parts(module: nn.Module, parts: Parts) -> None:
    """Attach parts to a layer or batch norm."""
    module.parts = parts  # type: ignore[assignment]
    exchange_class(module, AttachedNorm if isinstance(module, BatchNorm) else AttachedLayer)


def attach_output(module: nn.Module, output: Output) -> None:
    """Quantize what a module returns."""
    output.forward = module.__dict__.pop("forward", None)
    module.bayesbits_output = output  # type: ignore[assignment]
    exchange_class(module, QuantizedOutput)


def detach(module: nn.Module) -> None:
    """Make a module what it was before anything was attached to it."""
    if isinstance(module, QuantizedOutput):
        if module.bayesbits_output.forward is not None:
            module.forward = module.bayesbits_output.forward
        del module.bayesbits_output
    if isinstance(module, (AttachedLayer, AttachedNorm)):
        del module.parts
    restore_class(module)


def observe_output(module: nn.Module, see: Callable[[tuple[Any, ...], dict[str, Any], Any], None]) -> list[Any]:
    """Call `see` with the arguments and the result of every call of a module; returns the hooks' handles.

    The result is what the module itself computes: not yet quantized, and not yet changed by hooks.
    """
    if not isinstance(module, QuantizedOutput):
        return [
            module.register_forward_hook(
                lambda _, arguments, keywords, output: see(arguments, keywords, output), prepend=True, with_kwargs=True
            )
        ]
    given: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    return [
        module.register_forward_pre_hook(
            lambda _, arguments, keywords: given.append((arguments, keywords)), with_kwargs=True
        ),
        module.bayesbits_output.quantizer.register_forward_pre_hook(lambda _, x: see(*given.pop(), x[0])),
    ]
