"""The attached layer: a convolution or matrix product of the user's network with quantized input and weight.

Where it is a module with the forward of torch.nn, the module's class is exchanged (see `nn.class_exchange`); every
other product is found while its module runs (see `nn.weight_product`). What it computes with lies in its attribute
`parts`, beside and not among parameters and children; the network owns the quantizers and gates themselves (see
`nn.network_quantizers`).

A batch norm behind the layer is folded for rounding only: w_eff = Q(w f) / f, where f is the fold factor of
`nn.folding`. The batch norm stays where it is, and folding it at deployment is exact. Q(w f) / f is w rounded on a grid
that is stretched by 1 / |f|, channel by channel, so that folding needs no pass over the weight. A factor of 0 hides the
weight from the output, but not from gamma, which recovers only if batch norm has something to scale: there the weight
is rounded as if f were 1.

Once widths are final, biases are too: an integer layer adds its bias as a whole number of input step times weight
step, which is a coarse grid at few bits. The network that is evaluated and fine-tuned rounds its biases in the same
way: here the layer's own bias, in `nn.batch_norm` the shift of a batch norm that is folded into the layer. And where a
bias would not fit into 32 bits, the grid of its channel's weights is made coarser (see `nn.folding`).
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesbits.functional.grid import INTEGER_BITS
from bayesbits.nn.calibration_state import CalibrationState
from bayesbits.nn.channel_gate import ChannelFollower, ChannelGate
from bayesbits.nn.class_exchange import AttachedModule, exchange_class
from bayesbits.nn.folding import fold_factor, folded_bias, round_bias, widening
from bayesbits.nn.grouping import along_groups, group_count, in_groups, out_of_groups
from bayesbits.nn.quantizer import Quantizer
from bayesbits.utils.torch_private import BatchNorm, ConvNd, ConvTransposeNd, conv_forward, output_padding

SMALLEST_VARIANCE = 1e-12
"""Of outputs that are drawn; its root has a gradient."""

_CONV_TRANSPOSE: dict[int, Any] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@dataclass
class LayerParts:
    """What is attached to a layer; any of it may be missing."""

    weight: Quantizer | None = None
    """Quantizes the weight."""
    input: Quantizer | None = None
    """Quantizes the input."""
    gate: ChannelGate | ChannelFollower | None = None
    """Gates the output channels; where a batch norm follows, the batch norm has the gate instead."""
    gate_when_final: bool = False
    """The gate stands behind an instance norm, and here only once it is final, so that closed channels are zero."""
    norm: BatchNorm | None = None
    """The batch norm whose factor is folded into the weight for rounding."""
    norm_behind: BatchNorm | None = None
    """The batch norm that is folded at deployment: the same one, or for a tied weight one whose factor goes into the
    deployed steps."""
    group_size: int | None = None
    """How many neighboring inputs of an output share a range of the weight (see `nn.grouping`); None: all of them."""
    rounds_bias: bool = False
    """The bias is deployed as it is, with no batch norm behind it."""
    calibration: CalibrationState = field(default_factory=lambda: CalibrationState(known=True))
    """Shared by all that is attached to the network."""


class AttachedLayer(nn.Module):
    """What every attached layer computes with its weight [outputs, inputs of a group, ...] and bias.

    The weight of a transposed convolution is [inputs, outputs of a group, ...], as torch stores it.
    """

    parts: LayerParts
    weight: Tensor
    bias: Tensor | None
    groups: int = 1

    @property
    def _is_transposed(self) -> bool:
        """Whether this is a transposed convolution."""
        raise NotImplementedError

    @property
    def stored_weight(self) -> nn.Parameter | None:
        """The parameter that `weight` is or views; None where the weight is computed, and cannot be written."""
        raise NotImplementedError

    @property
    def stored_bias(self) -> nn.Parameter | None:
        """The parameter that is the bias; None where there is none, or where it is computed."""
        return self.bias if isinstance(self.bias, nn.Parameter) else None

    def compute(self, x: Tensor, weight: Tensor, bias: Tensor | None, output_size: list[int] | None = None) -> Tensor:
        """The layer's output for the weight and bias that are given."""
        raise NotImplementedError

    def set_constants(self, weight: Tensor, bias: Tensor | None) -> None:
        """Compute with this weight and bias from now on."""
        raise NotImplementedError

    def quantized(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Input, weight and bias as they are multiplied: on their grids, with the output channels gated."""
        parts = self.parts
        parts.calibration.check()
        if parts.input is not None:
            x = parts.input(x, dtype=autocast_dtype(x))
        gate = None if parts.gate is None or parts.gate.idle else parts.gate
        if gate is not None and parts.gate_when_final and not gate.final:
            gate = None
        # Where the weight is multiplied by gates next, it keeps its precision until then.
        dtype = autocast_dtype(weight) if gate is None else None
        weight = weight if parts.weight is None else self._rounded(weight, dtype)
        if bias is not None and parts.rounds_bias and (step := self.bias_step()) is not None:
            bias = round_bias(bias, step)
        if gate is not None:
            values = gate.values().to(weight.dtype)
            weight = weight * self.along_outputs(values)
            bias = None if bias is None else bias * values
        return x, weight, bias

    def along_outputs(self, values: Tensor) -> Tensor:
        """A vector over the output channels in a shape that broadcasts against the weight."""
        shape = self._weight_shape
        spatial = [1] * (len(shape) - 2)
        if not self._is_transposed:
            return values.reshape(-1, 1, *spatial)
        # Axis 0 holds the inputs of all groups, axis 1 the outputs of one.
        inputs, outputs = shape[0] // self.groups, shape[1]
        spread = values.reshape(self.groups, 1, outputs).expand(self.groups, inputs, outputs)
        return spread.reshape(-1, outputs, *spatial)

    def fold_factor(self) -> Tensor | None:
        """gamma / sqrt(var + eps) of every output channel; None without a batch norm to fold."""
        norm = self.parts.norm
        return None if norm is None or norm.running_var is None else fold_factor(norm)

    def deployed_bias(self) -> Tensor | None:
        """The bias with the batch norm behind the layer folded in, before it is rounded; None without a bias."""
        norm = self.parts.norm_behind
        if norm is None or norm.running_mean is None:
            return self.bias
        return folded_bias(norm, fold_factor(norm), self.bias, norm.bias)

    def bias_step(self) -> Tensor | None:
        """The step of the deployed bias, of all output channels or of each; None where it is not an integer."""
        step = self._input_step()
        return None if step is None else step * self.weight_steps()

    def weight_steps(self) -> Tensor:
        """The steps of the deployed weight: one, or one for each output channel."""
        wider, steps = self.widening(), self._steps_of_ranges()
        return steps if wider is None else steps * wider

    def widening(self) -> Tensor | None:
        """By how much the grid of each output channel is coarser than its range asks for, so that its bias fits.

        None where the bias is not an integer. Groups of a transposed convolution share one grid.
        """
        step = self._input_step()
        bias = None if step is None else self.deployed_bias()
        if step is None or bias is None:
            return None
        wider = widening(bias, step, self._steps_of_ranges())
        return wider.amax() if self._is_transposed and self.groups > 1 else wider

    def _input_step(self) -> Tensor | None:
        """The step of the input of an integer layer; None where the layer computes in float, or is not fixed yet."""
        if not self._adds_integers():
            return None
        assert self.parts.input is not None
        return self.parts.input.step()

    def _adds_integers(self) -> bool:
        """Whether the layer sums products of codes, to which its bias is added."""
        for quantizer in (self.parts.weight, self.parts.input):
            if quantizer is None or quantizer.mode != "fixed" or not 0 < (quantizer.fixed_bits or 0) <= INTEGER_BITS:
                return False
            if quantizer.dynamic:  # its step is known at run time alone: the bias is added in float
                return False
            if quantizer.not_deployable:  # it has no codes, and the layer no integer accumulator
                return False
        return True

    def _steps_of_ranges(self) -> Tensor:
        """The steps of the deployed weight that its ranges ask for; where the weight is tied, times the fold factor."""
        assert self.parts.weight is not None
        norm, steps = self.parts.norm_behind, self.parts.weight.step()
        if norm is None or norm is self.parts.norm:
            return steps
        factor = self._for_each_range(fold_factor(norm))
        return torch.where(factor == 0, steps, steps * factor.abs())

    def folded_weight(self) -> Tensor:
        """The weight as it is deployed, before rounding."""
        factor, weight = self.fold_factor(), self.weight
        return weight if factor is None else weight * self.along_outputs(factor)

    def effective_weight(self) -> Tensor:
        """Q(w f) / f: the quantized weight, with the fold factor divided out again."""
        return self.weight if self.parts.weight is None else self._rounded(self.weight)

    def folded_codes(self) -> Tensor:
        """The integer codes of the folded weight: those of the effective weight, with the signs of the factors."""
        assert self.parts.weight is not None
        weight = self.weight.detach()
        rows, stretch = self.for_rounding(weight)
        codes = self._from_rounding(self.parts.weight.codes(rows, stretch), rows, weight)
        factor = self.fold_factor()
        return codes if factor is None else codes * self.along_outputs(factor.sign()).to(codes.dtype)

    def _rounded(self, weight: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The quantized weight, in its own or another dtype."""
        assert self.parts.weight is not None
        rows, stretch = self.for_rounding(weight)
        return self._from_rounding(self.parts.weight(rows, stretch, dtype), rows, weight)

    def _from_rounding(self, result: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
        """What a quantizer made of the rows that `for_rounding` gave it, in the shape of the weight."""
        if self.parts.group_size is not None:
            return out_of_groups(result, weight.shape[1])
        return result.transpose(0, 1) if rows is not weight else result

    def for_rounding(self, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """A weight with what has a range of its own on axis 0, output channels or groups, and by how much the grid of
        each is stretched. A weight that its quantizer holds stays as it is stored, with a stretch that broadcasts."""
        quantizer = self.parts.weight
        if quantizer is not None and self._adds_integers():
            quantizer.follow(weight)  # its step decides about the widening
        factor, stretch = self.fold_factor(), self.widening()
        if factor is not None:
            unfolded = torch.where(factor == 0, 1.0, factor.abs()).reciprocal()
            stretch = unfolded if stretch is None else unfolded * stretch
        if self.parts.group_size is not None:
            return self.ranged_rows(weight), None if stretch is None else self._for_each_range(stretch)
        if stretch is not None and stretch.dim() and quantizer is not None and quantizer.holds_weight:
            return weight, self.along_outputs(stretch)
        if stretch is None or not self._is_transposed or self.groups > 1:
            return weight, stretch
        return weight.transpose(0, 1), stretch

    def ranged_rows(self, weight: Tensor) -> Tensor:
        """A weight with what has a range of its own on axis 0."""
        return weight if self.parts.group_size is None else in_groups(weight, self.parts.group_size)

    def along_ranges(self, values: Tensor) -> Tensor:
        """One value for each range of the weight, in a shape that broadcasts against the weight."""
        if self.parts.group_size is None:
            return self.along_outputs(values) if values.dim() else values
        return along_groups(values, self._weight_shape[1], self.parts.group_size)

    def _for_each_range(self, values: Tensor) -> Tensor:
        """One value for each output channel as one for each range of the weight."""
        if self.parts.group_size is None:
            return values
        return values.repeat_interleave(group_count(self._weight_shape[1], self.parts.group_size))

    @property
    def _weight_shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return tuple(self.weight.shape)


class AttachedTorchLayer(AttachedModule, AttachedLayer):
    """Mixed into the class of a convolution, a transposed convolution or a linear layer with the forward of torch."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:  # noqa: A002 (torch's name)
        x, weight, bias = self.quantized(input, self.weight, self.bias)
        output = self.compute(x, weight, bias, output_size)
        quantizer = self.parts.weight
        if quantizer is None or not quantizer.samples_outputs or not quantizer.training:
            return output
        if quantizer.mode == "off" or quantizer.fixed_bits == 0:
            return output
        # The weight is the mean of random ones: the output is drawn, as if for weights of its own in every place.
        of_weight = quantizer.variance(self.for_rounding(self.weight)[1]).to(weight.dtype)
        variance = self.compute(x.square(), of_weight, None, output_size)
        return output + variance.clamp_min(SMALLEST_VARIANCE).sqrt() * torch.randn_like(output)

    @property
    def _is_transposed(self) -> bool:
        return isinstance(self, ConvTransposeNd)

    @property
    def stored_weight(self) -> nn.Parameter | None:
        return self.weight if isinstance(self.weight, nn.Parameter) else None

    def compute(self, x: Tensor, weight: Tensor, bias: Tensor | None, output_size: list[int] | None = None) -> Tensor:
        if isinstance(self, ConvTransposeNd):
            axes = self.weight.dim() - 2
            padding = output_padding(self, x, output_size)
            result: Tensor = _CONV_TRANSPOSE[axes](
                x, weight, bias, self.stride, self.padding, padding, self.groups, self.dilation
            )
            return result
        if isinstance(self, ConvNd):
            return conv_forward(self, x, weight, bias)
        return F.linear(x, weight, bias)

    def set_constants(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def release(self) -> None:
        del self.parts


def attach_layer(module: nn.Module, parts: LayerParts) -> AttachedLayer:
    """Attach parts to a layer with the forward of torch, in place; returns the layer."""
    module.parts = parts  # type: ignore[assignment]
    exchange_class(module, AttachedTorchLayer)
    assert isinstance(module, AttachedLayer)
    return module


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The dtype that autocast would cast x to in front of a layer: quantizers write it at once, instead of twice."""
    if x.dtype != torch.float32 or x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return None
    return torch.get_autocast_dtype(x.device.type)
