"""The constants of a network, derived a second time from the plan and the trained weights.

This is independent code: it imports nothing that `deploy` computes constants with, so that an error there cannot repeat
itself here. The arithmetic is numpy's, in float32 operation by operation as the trained network rounds; biases are
rounded in float64. The deployed constants have to be exactly equal: a bias that is off by one step is found even if it
changes no code on the inputs of the verification.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bayesbits.compression.compressor import Compressor
from bayesbits.nn.weight_product import find_layer
from bayesbits.records.integer_network import Grid
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Layer
from bayesbits.utils.torch_private import BatchNorm

Array = NDArray[Any]

_FLOAT32 = np.float32
_EDGE = np.float32(1 - 1e-7)
"""Values are clipped to this part of the range."""
_LARGEST_BIAS = 2**31 - 1
_PLANNED_BIAS, _SMALLEST_BIAS_STEP = _FLOAT32(2**30), _FLOAT32(1e-30)
"""The grid of a channel's weights is so coarse that the bias has at most this code, and at least this step."""


@dataclass(frozen=True)
class LayerConstants:
    """The constants of a layer with its batch norm folded; channels that the plan removes are still there, as zeros."""

    weight: Array
    """The weight in float64: code times step where there are codes."""
    bias: Array | None
    """The bias in float64: a multiple of its step where the layer computes with integers."""
    codes: Array | None
    """The codes of the weight; None where it stays in float."""
    steps: Array | None
    """The step of the weight, or one for each output channel, or [output channels, groups]; None where it is float."""
    bias_codes: Array | None
    """The codes of the bias; None where the layer computes in float, or has no bias."""
    bits: int
    """The width of the weight."""
    input_bits: int
    """The width of the layer's input; 32 where it is float."""
    dynamic: bool = False
    """Whether the input is quantized at run time, by its own range; the bias is not an integer then."""

    @property
    def integer(self) -> bool:
        """Whether the layer can compute with integers."""
        fits = self.bias_codes is None or bool((np.abs(self.bias_codes) <= _LARGEST_BIAS).all())
        return self.codes is not None and self.bits <= 8 and self.input_bits <= 8 and fits


def derive_layers(fixed: Compressor, plan: Plan, grids: Mapping[str, Grid]) -> dict[str, LayerConstants]:
    """The constants of every layer, by name; `fixed` is the trained network with its plan fixed."""
    removed = plan.removed(fixed.topology)
    return {
        layer.name: _LayerDerivation(fixed, plan, layer, grids, removed).constants() for layer in fixed.topology.layers
    }


def kept_channels(layer: Layer, plan: Plan, removed: Collection[int]) -> Array:
    """For every output channel of a layer whether the plan keeps it; `removed` are the channel classes that are not."""
    kept = set(plan.kept.get(layer.name, range(len(layer.out_channels))))
    return np.array([index in kept and channel not in removed for index, channel in enumerate(layer.out_channels)])


def derive_grids(fixed: Compressor, plan: Plan) -> dict[str, Grid]:
    """The grid of every quantized activation, by the tensor's name."""
    found = {}
    for name, quantizer in fixed.attachment.quantizers.items():
        if name in plan.bits and name not in fixed.topology.parameter_tensors and not quantizer.dynamic:
            bits, beta = plan.bits[name], _array(quantizer.beta)
            if quantizer.alpha is not None:
                found[name] = _asymmetric_grid(name, bits, _array(quantizer.alpha), beta)
                continue
            high = _last_code(bits, quantizer.signed, quantizer.last_code)
            low = -high if quantizer.signed else 0
            step = _step(beta, bits, quantizer.signed)
            found[name] = Grid(name, bits, quantizer.signed, float(step), low, high, float(beta))
    return found


def _asymmetric_grid(name: str, bits: int, alpha: Array, beta: Array) -> Grid:
    """The grid of a range with two ends: the zero point is -alpha in steps, and codes are counted from there."""
    levels = 2**bits - 1
    step = (beta - alpha) / _FLOAT32(levels)
    zero_point = int(np.rint(-alpha / step))
    high = min(int(np.rint(beta / step)), levels - zero_point)
    return Grid(name, bits, True, float(step), -zero_point, high, float(beta), float(alpha))


class _LayerDerivation:
    def __init__(
        self, fixed: Compressor, plan: Plan, layer: Layer, grids: Mapping[str, Grid], removed: frozenset[int]
    ) -> None:
        self.layer, self.removed, self.plan = layer, removed, plan
        self.module = find_layer(fixed.model, layer.name)
        norm = None if layer.norm is None else fixed.model.get_submodule(layer.norm)
        assert isinstance(norm, BatchNorm | None)
        self.norm: Any = norm
        self.quantizer = fixed.attachment.quantizers.get(layer.parameter)
        self.bits = plan.bits[layer.parameter]
        grid = grids.get(layer.activation)
        self.input = None if grid is None or grid.carrier is None else grid
        reader = fixed.attachment.quantizers.get(layer.activation)
        self.dynamic = reader is not None and reader.dynamic and plan.bits[layer.activation] <= 8
        transposed = layer.kind == "conv_transpose"
        self.axis = 1 if transposed and layer.groups == 1 else 0
        tied = len(fixed.topology.weight_tensors[layer.parameter]) > 1
        self.factor = None if norm is None else _factor(norm)
        size = fixed.attachment.spec.group_size
        self.group_size = size if layer.kind == "linear" and self.quantizer is not None else None
        """How many neighboring inputs share a range."""
        self.rounded_folded = self.factor is not None and not tied and (not transposed or layer.groups == 1)
        self.rounded_folded = self.rounded_folded and fixed.attachment.folds
        """Whether the weight is multiplied by the factor of its batch norm before it is rounded."""

    def constants(self) -> LayerConstants:
        weight, keep = _array(self.module.weight), kept_channels(self.layer, self.plan, self.removed)
        bias = self._bias()
        self.widening = self._widening(bias)
        bias = None if bias is None else np.where(keep, bias, _FLOAT32(0))
        if self.quantizer is None or self.bits > 16:
            numbers = self._clipped(weight) if self.quantizer is not None else weight
            numbers = numbers if self.factor is None else numbers * self._along(self.factor)
            numbers = np.where(self._along(keep), numbers, _FLOAT32(0))
            wide = None if bias is None else bias.astype(np.float64)
            return LayerConstants(numbers.astype(np.float64), wide, None, None, None, *self._widths())
        codes, steps = self._codes(weight)
        codes = np.where(self._along(keep), codes, 0)
        spread = steps if steps.size == 1 else self._spread(steps)
        numbers = codes.astype(np.float64) * spread.astype(np.float64)
        bias_codes = wide = None
        if bias is not None:
            wide = bias.astype(np.float64)
            if self.input is not None and self.bits <= 8 and self.input.bits <= 8:
                bias_codes = np.rint(wide / (_FLOAT32(self.input.step) * steps).astype(np.float64))
                if (np.abs(bias_codes) <= _LARGEST_BIAS).all():
                    # The layer adds codes to sums of products of codes. What both are multiplied with is not rounded
                    # here, as rounding it for one of them alone would show where they nearly cancel.
                    wide = bias_codes * (np.float64(_FLOAT32(self.input.step)) * steps.astype(np.float64))
        return LayerConstants(numbers, wide, codes, steps, bias_codes, *self._widths())

    def _widths(self) -> tuple[int, int, bool]:
        """The bits of the weight and of the input, and whether the input has them at run time alone."""
        if self.dynamic:
            return self.bits, 8, True
        return self.bits, 32 if self.input is None else self.input.bits, False

    def _along(self, values: Array) -> Array:
        """Values of the output channels in a shape that broadcasts over the weight."""
        if self.layer.kind == "conv_transpose" and self.layer.groups > 1 and values.size > 1:
            inputs, outputs, *kernel = self.layer.weight_shape
            groups = np.arange(inputs) // (inputs // self.layer.groups)  # of the input channels
            columns = groups[:, None] * outputs + np.arange(outputs)
            return np.asarray(values[columns].reshape(inputs, outputs, *[1] * len(kernel)))
        return values.reshape(*[1] * self.axis, -1, *[1] * (len(self.layer.weight_shape) - self.axis - 1))

    def _spread(self, values: Array) -> Array:
        """Values of the ranges in a shape that broadcasts over the weight."""
        if self.group_size is None:
            return self._along(values)
        rows, inputs = self.layer.weight_shape
        columns = np.arange(inputs) // self.group_size
        return np.asarray(values.reshape(rows, -1)[:, columns])

    def _of_ranges(self, values: Array) -> Array:
        """Values of the output channels, one for each range."""
        if self.group_size is None or values.size == 1:
            return values
        return np.repeat(values, -(-self.layer.weight_shape[1] // self.group_size))

    def _range(self) -> Array:
        """The upper end of the range, of the weight or of each output channel, before batch norm is folded."""
        assert self.quantizer is not None
        beta = _array(self.quantizer.beta)
        if self.rounded_folded:
            assert self.factor is not None
            stretch = _FLOAT32(1) / np.where(self.factor == 0, _FLOAT32(1), np.abs(self.factor))
            beta = beta * self._of_ranges(stretch * self.widening)
        else:
            beta = beta * self.widening
        return beta if beta.size == 1 else self._spread(beta)

    def _steps(self) -> Array:
        """The steps of the deployed weight that its ranges ask for, of the weight or of each output channel."""
        assert self.quantizer is not None
        steps = _step(_array(self.quantizer.beta), self.bits or 2, True)
        if self.factor is not None and not self.rounded_folded:
            factor = self._of_ranges(self.factor)
            steps = np.where(factor == 0, steps, steps * np.abs(factor))
        return steps

    def _widening(self, bias: Array | None) -> Array:
        """By how much the grid of each output channel is coarser, so that its bias fits into 32 bits."""
        integer = self.quantizer is not None and 0 < self.bits <= 8 and self.input is not None and self.input.bits <= 8
        if bias is None or not integer:
            return np.ones((), _FLOAT32)
        assert self.input is not None
        bias_steps = np.maximum(np.abs(bias) / _PLANNED_BIAS, _SMALLEST_BIAS_STEP)
        widening = np.maximum(bias_steps / _FLOAT32(self.input.step) / self._steps(), _FLOAT32(1))
        # The outputs of a grouped transposed convolution are on no axis of its weight: it has one grid.
        one_grid = self.layer.kind == "conv_transpose" and self.layer.groups > 1
        return np.asarray(widening.max() if one_grid else widening)

    def _clipped(self, weight: Array) -> Array:
        beta = self._range()
        numbers = np.clip(weight, -(beta * _EDGE), beta * _EDGE)
        if self.bits <= 24:  # the codes are exact in float32
            step = _step(beta, self.bits, True)
            numbers = np.rint(numbers / step) * step
        return numbers

    def _codes(self, weight: Array) -> tuple[Array, Array]:
        assert self.quantizer is not None
        beta, high = self._range(), _last_code(self.bits, True, self.quantizer.last_code)
        if self.bits == 0:
            codes = np.zeros(weight.shape)
        else:
            clipped = np.clip(weight, -(beta * _EDGE), beta * _EDGE)
            codes = np.clip(np.rint(clipped / _step(beta, self.bits, True)), -high, high)
        steps: Array = (self._steps() * self.widening).reshape(-1)
        if self.group_size is not None:
            steps = steps.reshape(weight.shape[0], -1)
        elif _array(self.quantizer.beta).size == 1 and (steps == steps[0]).all():
            steps = steps[:1]
        if self.factor is not None:
            codes = codes * self._along(np.sign(self.factor))
        return codes.astype(np.int64), steps

    def _bias(self) -> Array | None:
        bias = None if self.module.bias is None else _array(self.module.bias)
        if self.norm is not None:
            mean = _array(self.norm.running_mean)
            shift = _FLOAT32(0) if self.norm.bias is None else _array(self.norm.bias)
            bias = shift - (mean if bias is None else mean - bias) * self.factor
        return bias


def _factor(norm: BatchNorm) -> Array:
    """gamma / sqrt(var + eps); torch computes the reciprocal root, because its rounding depends on the machine."""
    assert norm.running_var is not None
    factor = _array(torch.rsqrt(norm.running_var + norm.eps))
    return factor if norm.weight is None else factor * _array(norm.weight)


def _last_code(bits: int, signed: bool, used: int | None) -> int:
    """The largest code of a grid, of which a method may use a part."""
    whole: int = 2 ** (bits - signed) - 1
    return whole if used is None else used


def _step(beta: Array, bits: int, signed: bool) -> Array:
    return np.asarray((beta * _FLOAT32(2) if signed else beta) / _FLOAT32(2**bits - 1))


def _array(tensor: Tensor | nn.Module) -> Array:
    assert isinstance(tensor, Tensor)
    array: Array = tensor.detach().cpu().numpy()
    return array
