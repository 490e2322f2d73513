"""The modules of layers: with float arithmetic, with codes, and with an input that is quantized at run time."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesbits.deploy.exact_sums import EXACT_IN_FLOAT32, largest_sum
from bayesbits.deploy.modules.quantizers import describe_output, emit, output_scale
from bayesbits.functional.dynamic import LEVELS, dynamic_codes, dynamic_ends, dynamic_grid
from bayesbits.nn.grouping import along_groups
from bayesbits.records.integer_network import IntegerLayer, IntegerNetwork
from bayesbits.records.topology import output_axis

_CONVOLUTIONS: dict[tuple[str, int], Any] = {
    ("conv", 1): F.conv1d,
    ("conv", 2): F.conv2d,
    ("conv", 3): F.conv3d,
    ("conv_transpose", 1): F.conv_transpose1d,
    ("conv_transpose", 2): F.conv_transpose2d,
    ("conv_transpose", 3): F.conv_transpose3d,
}


class FloatLayer(nn.Module):
    """A layer whose arithmetic is float; its weight may still lie on a grid."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, network: IntegerNetwork, layer: IntegerLayer) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("weight", _numbers(network, layer))
        self.register_buffer("bias", network.bias(layer.name))

    def forward(self, x: Tensor) -> Tensor:
        return _apply(self.layer, self.read(x.float()), self.weight, self.bias)

    def read(self, x: Tensor) -> Tensor:
        """The numbers that are multiplied: x, or x on the grid of its own range."""
        if not self.layer.dynamic:
            return x
        step, zero_point = dynamic_grid(*dynamic_ends(x))
        return dynamic_codes(x, step, zero_point) * step

    def exact(self, x: Tensor) -> Tensor:
        """The output in float64, where the input is quantized in float32 as ever."""
        bias = None if self.bias is None else self.bias.double()
        return _apply(self.layer, self.read(x).double(), self.weight.double(), bias)

    def extra_repr(self) -> str:
        return f"{self.layer.kind} {self.layer.weight_shape}, {self.layer.bits}-bit weights, float: {self.layer.reason}"


class ExactLayer(nn.Module):
    """A layer whose weights are codes: it reads codes, accumulates exactly, and emits codes or numbers."""

    codes: Tensor
    bias: Tensor | None
    scale: Tensor

    def __init__(self, network: IntegerNetwork, layer: IntegerLayer) -> None:
        super().__init__()
        self.layer = layer
        assert layer.input is not None
        grid = network.grid(layer.input)
        spatial = (1,) * (0 if layer.kind == "linear" else len(layer.weight_shape) - 2)
        self.register_buffer("codes", network.codes(layer.name))
        scale = output_scale(network, layer, torch.tensor(grid.step) * network.steps(layer.name))
        self.register_buffer("scale", scale.reshape(-1, *spatial))
        self.register_buffer("bias", network.bias(layer.name))
        self.adds_bias_to_numbers = network.adds_bias_to_numbers(layer)
        self.wide = largest_sum(network, layer) >= EXACT_IN_FLOAT32

    def forward(self, codes: Tensor) -> Tensor:
        # On a GPU sums may be formed by transforms that round; in float64 they cannot come near half a unit.
        dtype = torch.float64 if self.wide or codes.is_cuda else torch.float32
        bias = None if self.bias is None or self.adds_bias_to_numbers else self.bias.to(dtype)
        sums = _apply(self.layer, codes.to(dtype), self.codes.to(dtype), bias)
        emitted = emit(self.layer, (torch.round(sums) if codes.is_cuda else sums).float() * self.scale)
        return emitted + self.bias if self.bias is not None and self.adds_bias_to_numbers else emitted

    def extra_repr(self) -> str:
        layer = self.layer
        return f"{layer.kind} {layer.weight_shape}, {layer.bits}-bit weights, {describe_output(layer)}"


class DynamicLayer(nn.Module):
    """A linear layer whose weights are codes: it quantizes its input by the range of the whole tensor, accumulates
    exactly, and emits numbers."""

    codes: Tensor
    steps: Tensor
    bias: Tensor | None

    def __init__(self, network: IntegerNetwork, layer: IntegerLayer) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("codes", network.codes(layer.name))
        self.register_buffer("steps", network.steps(layer.name))
        self.register_buffer("bias", network.bias(layer.name))
        rows = self.codes.to(torch.int64).abs().sum(1)
        self.wide = bool(rows.numel()) and int(rows.max()) * LEVELS >= EXACT_IN_FLOAT32

    def forward(self, x: Tensor) -> Tensor:
        codes, step, _ = self.quantized(x)
        return self._numbers(self.sums(codes).float(), step, torch.float32)

    def quantized(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The codes of the input, centered, its step and its zero point."""
        step, zero_point = dynamic_grid(*dynamic_ends(x))
        return dynamic_codes(x, step, zero_point), step, zero_point

    def sums(self, codes: Tensor) -> Tensor:
        """The sums of products of codes: whole numbers."""
        dtype = torch.float64 if self.wide or codes.is_cuda else torch.float32
        sums = F.linear(codes.to(dtype), self.codes.to(dtype))
        return torch.round(sums) if codes.is_cuda else sums

    def exact(self, x: Tensor) -> Tensor:
        """The output in float64, where the input is quantized in float32 as ever."""
        codes, step, _ = self.quantized(x)
        return self._numbers(self.sums(codes).double(), step, torch.float64)

    def _numbers(self, sums: Tensor, step: Tensor, dtype: torch.dtype) -> Tensor:
        numbers = sums * (step.to(dtype) * self.steps.to(dtype))
        return numbers if self.bias is None else numbers + self.bias.to(dtype)

    def extra_repr(self) -> str:
        layer = self.layer
        return f"{layer.kind} {layer.weight_shape}, {layer.bits}-bit weights, input quantized at run time"


def make_layer(network: IntegerNetwork, layer: IntegerLayer) -> nn.Module:
    """The module that computes a layer."""
    if layer.arithmetic == "float":
        return FloatLayer(network, layer)
    return (DynamicLayer if layer.dynamic else ExactLayer)(network, layer)


def _numbers(network: IntegerNetwork, layer: IntegerLayer) -> Tensor:
    if f"{layer.name}.weight" in network.tensors:
        return network.tensors[f"{layer.name}.weight"]
    codes, steps = network.codes(layer.name), network.steps(layer.name)
    if layer.group_size is not None:
        return codes.float() * along_groups(steps, codes.shape[1], layer.group_size)
    axis = output_axis(layer.kind, layer.groups)
    return codes.float() * steps.reshape(*[1] * axis, -1, *[1] * (codes.dim() - axis - 1))


def _apply(layer: IntegerLayer, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if layer.kind == "linear":
        return F.linear(x, weight, bias)
    convolution = _CONVOLUTIONS[layer.kind, len(layer.weight_shape) - 2]
    if layer.kind == "conv":
        result: Tensor = convolution(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)
    else:
        result = convolution(
            x, weight, bias, layer.stride, layer.padding, layer.output_padding, layer.groups, layer.dilation
        )
    return result
