"""The standard ONNX nodes of layers and quantizers, which onnxruntime fuses into integer kernels.

Every pattern was chosen by experiment so that two things hold at once: with default options the runtime runs the layer
in integers, and its result is known bit by bit. Another runtime that fuses other patterns needs another writer.

- A layer that emits codes is DequantizeLinear -> Conv or Gemm -> QuantizeLinear -> integer Clip, which becomes
  QLinearConv or QGemm. A float Clip in front of QuantizeLinear would prevent the fusion.
- A linear layer that emits numbers is MatMulIntegerToFloat of the runtime's own domain, which adds the bias, too. The
  runtime makes it of standard nodes only where the step of the input is computed at run time.
- A convolution that emits numbers is ConvInteger, a Cast, a Mul by the scale and an Add of the bias. As Conv, followed
  by a float function, it would become a float kernel.
- A linear layer whose input is quantized at run time is DynamicQuantizeLinear and MatMulInteger (see `run_time_nodes`).
- A convolution of an image with one position that emits numbers is written as a linear layer: the runtime's ConvInteger
  takes ten times as long.
- A convolution that reads two or three channels is given channels of zeros up to four, and a depthwise one up to a
  multiple of 16, which halves the time of either. A layer in front of a depthwise one emits these channels itself.
- Codes that float operations read are dequantized by DequantizeLinear. Between it and QuantizeLinear the runtime would
  fuse some operations to QLinearMul and the like, whose rounding depends on the CPU: in front of those, codes are
  dequantized by Cast, Sub and Mul. Additions are written as Sum, which the runtime does not fuse.
- A table of embeddings is Gather of its codes, Cast and Mul by the steps, which are gathered by row.
- A float layer whose weight has a step for every group of inputs is MatMulNBits (see `block_weights`).
- In the compact form, weights of 2 and 4 bits are stored as int2 and int4 and cast to int8; the runtime computes the
  cast once, when it loads the file.

"uint8 codes" are code plus zero point, "float codes" are whole numbers in float32, centered at zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from bayesbits.deploy.onnx.block_weights import FLOAT32, stored_bits, write_block_product, write_expanded_weight
from bayesbits.deploy.onnx.run_time_nodes import RunTimeNodes
from bayesbits.deploy.onnx.tensor_names import RUNTIME_DOMAIN, auxiliary_node
from bayesbits.records.integer_network import Grid, IntegerLayer, IntegerNetwork, IntegerTable
from bayesbits.records.topology import output_axis

Array = NDArray[Any]

FEW_CHANNELS, PADDED_CHANNELS = (2, 3), 4
"""The runtime copies the channels of a window position by position, four bytes twice as fast as two or three."""
DEPTHWISE_BLOCK, DEPTHWISE_PART = 16, 8
"""The channels that the runtime's depthwise kernel computes at once, and those that it can still do at the end. Others
follow one by one."""
MANY_CHANNELS, MANY_POSITIONS = 56, 144
"""Where the time that whole blocks save is more than what padding and slicing take."""


class NodeWriter:
    """Collects the nodes and constants that replace custom nodes."""

    def __init__(self, network: IntegerNetwork, compact: bool, accuracy: int = FLOAT32) -> None:
        """`accuracy`: the accuracy level of products with weights in groups."""
        self.network, self.compact, self.accuracy = network, compact, accuracy
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, TensorProto] = {}
        self.more_channels: dict[str, int] = {}
        """How many channels of zeros layers emit behind their own, by the name of the layer."""
        self.padded: dict[str, str] = {}
        """The tensors that hold such channels as well, by the name of the tensor without them."""
        self.run_time = RunTimeNodes(self)

    def add(
        self, operation: str, inputs: Sequence[str], output: str, name: str | None = None, **attributes: Any
    ) -> str:
        """Add a node and return its output; the node that computes a layer is given the layer's name."""
        name = auxiliary_node(output) if name is None else name
        self.nodes.append(helper.make_node(operation, list(inputs), [output], name=name, **attributes))
        return output

    def constant(self, name: str, value: Array | np.generic) -> str:
        """Add a constant, or find the one of this name."""
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
        return name

    def quantize(self, grid: Grid, x: str, output: str) -> None:
        """Numbers to the codes of a grid: uint8 codes up to 8 bits, float codes above."""
        if grid.carrier == "uint8":
            self._quantize_linear(grid, x, output, grid.low, grid.high, grid.name)
            return
        step = self.constant(f"{grid.name}.step", np.float32(grid.step))
        codes = self.add("Round", [self.add("Div", [x, step], f"{output}/divided")], f"{output}/rounded")
        bounds = [
            self.constant(f"{grid.name}.{end}", np.float32(code))
            for end, code in (("low", grid.low), ("high", grid.high))
        ]
        self.add("Clip", [codes, *bounds], output)

    def dequantize(self, grid: Grid, x: str, output: str, *, at_once: bool) -> None:
        """Uint8 codes to numbers; at once by DequantizeLinear, or in steps that the runtime fuses with nothing."""
        if at_once:
            self.add("DequantizeLinear", [x, *self.grid_constants(grid)], output)
        else:
            self.scale(grid, self.to_float_codes(grid, x, f"{output}/codes"), output)

    def to_float_codes(self, grid: Grid, x: str, output: str) -> str:
        """Uint8 codes to float codes."""
        if not grid.zero_point:
            return self.add("Cast", [x], output, to=TensorProto.FLOAT)
        number = self.add("Cast", [x], f"{output}/cast", to=TensorProto.FLOAT)
        zero = self.constant(f"{grid.name}.zero_point.float", np.float32(grid.zero_point))
        return self.add("Sub", [number, zero], output)

    def to_uint8_codes(self, grid: Grid, x: str, output: str) -> None:
        """Float codes to uint8 codes."""
        zero = self.constant(f"{grid.name}.zero_point.float", np.float32(grid.zero_point))
        self.add("Cast", [self.add("Add", [x, zero], f"{output}/added")], output, to=TensorProto.UINT8)

    def scale(self, grid: Grid, x: str, output: str) -> None:
        """Float codes to numbers: code times step."""
        self.add("Mul", [x, self.constant(f"{grid.name}.step", np.float32(grid.step))], output)

    def table(self, table: IntegerTable, indices: str, output: str) -> None:
        """Rows of a table: the codes are looked up, and multiplied by the step of their row."""
        if f"{table.name}.codes" not in self.network.tensors:
            weight = self.constant(f"{table.name}.weight", self._tensor(table, "weight"))
            self.add("Gather", [weight, indices], output)
            return
        codes = self.add("Gather", [self._weight(table), indices], f"{output}/codes")
        numbers = self.add("Cast", [codes], f"{output}/numbers", to=TensorProto.FLOAT)
        steps = self._tensor(table, "steps")
        step = self.constant(f"{table.name}.weight.step", steps.reshape((-1, 1) if steps.size > 1 else ()))
        if steps.size > 1:
            step = self.add("Gather", [step, indices], f"{output}/steps")
        self.add("Mul", [numbers, step], output)

    def layer(
        self,
        layer: IntegerLayer,
        x: str,
        output: str,
        name: str,
        shape: Sequence[int | None],
        padding: Sequence[int] = (),
        example: Sequence[int | None] | None = None,
    ) -> None:
        """A layer whose output has this shape; None stands for a size that may change, `example` has those of examples.

        A convolution that emits codes may pad its input by more than its own padding: in front on every axis of the
        image, and behind.
        """
        if layer.kind != "linear" and len(shape) < len(layer.weight_shape):  # an image without a batch axis
            first = self.constant("first axis", np.array([0]))
            x = self.add("Unsqueeze", [x, first], f"{name}/batch")
            self.layer(layer, x, f"{name}/batch/output", name, [1, *shape])
            self.add("Squeeze", [f"{name}/batch/output", first], output)
        elif layer.arithmetic == "float":
            x = self.run_time.rounded(x) if layer.dynamic else x
            self._float_layer(layer, x, output, name, shape)
        elif layer.dynamic:
            self.run_time.layer(layer, x, self._weight(layer), output, name)
        elif layer.kind == "conv_transpose":
            self._transposed_convolution(layer, x, output, name)
        elif layer.output is None and _multiplies_one_position(layer, shape):
            self._matrix_product(layer, x, output, name)
        elif layer.output is None:
            self._integer_sum(layer, x, self._weight(layer), output, name)
        else:
            self._fused_layer(layer, x, output, name, shape, padding, shape if example is None else example)

    def _fused_layer(
        self,
        layer: IntegerLayer,
        x: str,
        output: str,
        name: str,
        shape: Sequence[int | None],
        padding: Sequence[int],
        example: Sequence[int | None],
    ) -> None:
        """A layer that emits codes, which the runtime fuses into one kernel."""
        flat, given = layer.kind == "linear" and len(shape) != 2, x  # Gemm takes matrices
        if flat:
            rows = self.constant(f"{layer.name}.rows", np.array([-1, layer.weight_shape[1]]))
            x = self.add("Reshape", [x, rows], f"{name}/rows")
        depthwise = pads_depthwise(layer, example)
        more_in = missing_channels(layer, example)
        if depthwise and x not in self.padded and max(layer.stride) > 1:  # padding its large input takes as long
            depthwise, more_in = False, 0
        more_out = more_in if depthwise else self.more_channels.get(layer.name, 0)
        x = self._padded_input(layer, x, name, more_in) if more_in else x
        weight = self._padded(layer, "weight", self._weight(layer), name, [more_out, 0 if depthwise else more_in])
        operands = [self.add("DequantizeLinear", [x, *self.grid_constants(self._input(layer))], f"{name}/input")]
        operands.append(self._dequantized(layer, "weight", weight, name, self._steps(layer), more_out))
        if layer.bias:
            bias = self.constant(f"{layer.name}.bias", self._tensor(layer, "bias"))
            bias = self._padded(layer, "bias", bias, name, [more_out])
            operands.append(self._dequantized(layer, "bias", bias, name, self._accumulator_steps(layer), more_out))
        operation, attributes = ("Conv", window(layer, padding)) if layer.kind == "conv" else ("Gemm", {"transB": 1})
        if depthwise:
            attributes["group"] += more_out
        result = self.add(operation, operands, f"{name}/sum", name=name, **attributes)
        assert layer.output is not None
        target = f"{name}/codes" if flat else f"{output}/padded" if more_out else output
        grid = self.network.grid(layer.output)
        self._quantize_linear(grid, result, target, layer.output_low, layer.output_high, f"{layer.name}.codes")
        if flat:
            self.add("Reshape", [target, self._sizes(layer, given, name, shape)], output)
        elif more_out:
            self.padded[output] = target
            ends = self.constant(f"{layer.name}.end", np.array([layer.weight_shape[0]]))
            first, axis = self.constant("first axis", np.array([0])), self.constant("channel axis", np.array([1]))
            self.add("Slice", [target, first, ends, axis], output)

    def _sizes(self, layer: IntegerLayer, x: str, name: str, shape: Sequence[int | None]) -> str:
        """The shape of a linear layer's output; where several sizes may change, those in front are read from x."""
        if sum(size is None for size in shape) <= 1:
            sizes = np.array([-1 if size is None else size for size in shape])
            return self.constant(f"{layer.name}.shape", sizes)
        front = self.add("Shape", [x], f"{name}/front", end=-1)
        features = self.constant(f"{layer.name}.features", np.array([layer.weight_shape[0]]))
        return self.add("Concat", [front, features], f"{name}/sizes", axis=0)

    def _padded_input(self, layer: IntegerLayer, x: str, name: str, more: int) -> str:
        """The codes that a layer reads, with channels of zeros behind them; the layer in front may emit those, too."""
        if x in self.padded:
            return self.padded[x]
        ends = [0, more] + [0] * (len(layer.weight_shape) - 2)
        amounts = self.constant(f"{layer.name}.input.channels", np.array([0] * len(ends) + ends))
        return self.add("Pad", [x, amounts, self.grid_constants(self._input(layer))[1]], f"{name}/input/padded")

    def _padded(
        self, layer: IntegerLayer, what: str, constant: str, name: str, more: Sequence[int], value: str = ""
    ) -> str:
        """A constant of a layer with more entries at the ends of its first axes, which the runtime adds once."""
        if not any(more):
            return constant
        ends = [*more, *[0] * (len(layer.weight_shape) - len(more))] if what == "weight" else list(more)
        amounts = self.constant(f"{layer.name}.{what}.channels", np.array([0] * len(ends) + ends))
        return self.add("Pad", [constant, amounts, value] if value else [constant, amounts], f"{name}/{what}/padded")

    def _matrix_product(self, layer: IntegerLayer, x: str, output: str, name: str) -> None:
        """A convolution of an image with one position that emits numbers: a product with the matrix of its weight."""
        outputs, inputs = layer.weight_shape[:2]
        rows = self.constant(f"{layer.name}.rows", np.array([-1, inputs]))
        sizes = self.constant(f"{layer.name}.shape", np.array([-1, outputs] + [1] * (len(layer.weight_shape) - 2)))
        x = self.add("Reshape", [x, rows], f"{name}/rows")
        weight = self.add("Reshape", [self._weight(layer), rows], f"{name}/matrix")
        linear = replace(layer, kind="linear", weight_shape=layer.weight_shape[:2])
        self._integer_sum(linear, x, weight, f"{name}/numbers", name)
        self.add("Reshape", [f"{name}/numbers", sizes], output)

    def _integer_sum(self, layer: IntegerLayer, x: str, weight: str, output: str, name: str) -> None:
        """A layer that emits numbers: the integer sum of products, converted to float, scaled, plus the bias."""
        step, zero_point = self.grid_constants(self._input(layer))
        steps = _along_channels(layer, self._tensor(layer, "steps"))
        weight_step = self.constant(f"{layer.name}.weight.step", steps)
        if layer.kind == "linear":
            turned = self.add("Transpose", [weight], f"{name}/turned", perm=[1, 0])
            operands = [x, turned, step, weight_step, zero_point, "", *self._bias_numbers(layer)]
            self.add("MatMulIntegerToFloat", operands, output, name=name, domain=RUNTIME_DOMAIN)
            return
        total = self.add("ConvInteger", [x, weight, zero_point], f"{name}/sum", name=name, **window(layer))
        number = self.add("Cast", [total], f"{name}/number", to=TensorProto.FLOAT)
        self._scaled_sum(layer, number, self.add("Mul", [step, weight_step], f"{name}/scale"), output, name)

    def _scaled_sum(self, layer: IntegerLayer, total: str, scale: str, output: str, name: str) -> None:
        """A sum of products times the scale, plus the bias."""
        last = f"{name}/scaled" if layer.bias else output
        self.add("Mul", [total, scale], last)
        if layer.bias:
            self.add("Add", [last, *self._bias_numbers(layer)], output)

    def _bias_numbers(self, layer: IntegerLayer) -> list[str]:
        """The bias of a layer that emits numbers, if it has one."""
        if not layer.bias:
            return []
        bias = _along_channels(layer, self.network.bias_numbers(layer).numpy())
        return [self.constant(f"{layer.name}.bias", bias)]

    def _transposed_convolution(self, layer: IntegerLayer, x: str, output: str, name: str) -> None:
        """A transposed convolution of float codes, which is exact; the runtime has no integer kernel for it."""
        codes = self.to_float_codes(self._input(layer), x, f"{name}/input")
        weight = self.add("Cast", [self._weight(layer)], f"{name}/weight", to=TensorProto.FLOAT)
        total = self.add("ConvTranspose", [codes, weight], f"{name}/sum", name=name, **window(layer))
        scale = _along_channels(layer, self._accumulator_steps(layer))
        if layer.output is None:
            self._scaled_sum(layer, total, self.constant(f"{layer.name}.scale", scale), output, name)
            return
        if layer.bias:
            bias = self.constant(f"{layer.name}.bias", _along_channels(layer, self._tensor(layer, "bias")))
            number = self.add("Cast", [bias], f"{name}/bias", to=TensorProto.FLOAT)
            total = self.add("Add", [total, number], f"{name}/biased")
        scale = scale / np.float32(self.network.grid(layer.output).step)
        scaled = self.add("Mul", [total, self.constant(f"{layer.name}.scale", scale)], f"{name}/numbers")
        bounds = [
            self.constant(f"{layer.name}.codes.{end}", np.float32(code))
            for end, code in (("low", layer.output_low), ("high", layer.output_high))
        ]
        rounded = self.add("Round", [scaled], f"{name}/rounded")
        clipped = self.add("Clip", [rounded, *bounds], f"{name}/clipped")
        self.to_uint8_codes(self.network.grid(layer.output), clipped, output)

    def _float_layer(self, layer: IntegerLayer, x: str, output: str, name: str, shape: Sequence[int | None]) -> None:
        """A layer in float; codes of its weight are multiplied by their steps, once, when the file is loaded.

        A weight in groups may stay packed, and is then expanded while it is multiplied (see `block_weights`).
        """
        bits = None if layer.group_size is None else stored_bits(layer.bits, self.accuracy, self.compact)
        if bits is not None:
            write_block_product(self, layer, bits, x, output, name)
            return
        if layer.group_size is not None:
            weight = write_expanded_weight(self, layer, self._weight(layer), name)
        elif f"{layer.name}.codes" in self.network.tensors:
            codes = self.add("Cast", [self._weight(layer)], f"{name}/codes", to=TensorProto.FLOAT)
            steps = self._tensor(layer, "steps")
            axis = output_axis(layer.kind, layer.groups)
            sizes = [1] * len(layer.weight_shape)
            sizes[axis] = -1
            steps = steps.reshape(sizes if steps.size > 1 else ())
            weight = self.add("Mul", [codes, self.constant(f"{layer.name}.weight.step", steps)], f"{name}/weight")
        else:
            weight = self.constant(f"{layer.name}.weight", self._tensor(layer, "weight"))
        bias = [self.constant(f"{layer.name}.bias", self._tensor(layer, "bias"))] if layer.bias else []
        if layer.kind != "linear":
            operation = "Conv" if layer.kind == "conv" else "ConvTranspose"
            self.add(operation, [x, weight, *bias], output, name=name, **window(layer))
        elif len(shape) == 2:
            self.add("Gemm", [x, weight, *bias], output, name=name, transB=1)
        else:
            turned = self.add("Transpose", [weight], f"{name}/turned", perm=[1, 0])
            last = f"{name}/product" if bias else output
            self.add("MatMul", [x, turned], last, name=name)
            if bias:
                self.add("Add", [last, *bias], output)

    def _quantize_linear(self, grid: Grid, x: str, output: str, low: int, high: int, owner: str) -> None:
        """Numbers to uint8 codes inside bounds; without a Clip where the bounds are those of uint8."""
        low, high = low + grid.zero_point, high + grid.zero_point
        if (low, high) == (0, 255):
            self.add("QuantizeLinear", [x, *self.grid_constants(grid)], output)
            return
        codes = self.add("QuantizeLinear", [x, *self.grid_constants(grid)], f"{output}/unclipped")
        bounds = [self.constant(f"{owner}.{end}", np.uint8(code)) for end, code in (("low", low), ("high", high))]
        self.add("Clip", [codes, *bounds], output)

    def grid_constants(self, grid: Grid) -> list[str]:
        """The constants of a grid: its step and its zero point."""
        return [
            self.constant(f"{grid.name}.step", np.float32(grid.step)),
            self.constant(f"{grid.name}.zero_point", np.uint8(grid.zero_point)),
        ]

    def _input(self, layer: IntegerLayer) -> Grid:
        assert layer.input is not None
        return self.network.grid(layer.input)

    def _tensor(self, layer: IntegerLayer | IntegerTable, what: str) -> Array:
        array: Array = self.network.tensors[f"{layer.name}.{what}"].numpy()
        return array

    def _steps(self, layer: IntegerLayer) -> Array:
        steps = self._tensor(layer, "steps").astype(np.float32)
        return steps.reshape(()) if steps.size == 1 else steps

    def _accumulator_steps(self, layer: IntegerLayer) -> Array:
        """The step of the accumulator, multiplied in float32 as the runtime does."""
        return np.asarray(np.float32(self._input(layer).step) * self._steps(layer), dtype=np.float32)

    def _dequantized(self, layer: IntegerLayer, what: str, codes: str, name: str, steps: Array, more: int) -> str:
        """The numbers of a weight or bias; `more` channels of zeros at its end have a step of one."""
        step = self.constant(f"{layer.name}.{what}.step", steps)
        zeros = np.zeros(steps.shape, np.int8 if what == "weight" else np.int32)
        zero = self.constant(f"{layer.name}.{what}.zero_point", zeros)
        if more and steps.ndim:
            one = (
                self.constant("one", np.float32(1)) if what == "weight" else self.grid_constants(self._input(layer))[0]
            )
            step = self._padded(layer, f"{what}.step", step, name, [more], one)
            zero = self._padded(layer, f"{what}.zero_point", zero, name, [more])
        return self.add("DequantizeLinear", [codes, step, zero], f"{name}/{what}", axis=0)

    def _weight(self, layer: IntegerLayer | IntegerTable) -> str:
        """The codes of a weight or table as int8 or int16; the compact form stores narrower types and casts them."""
        name, codes = f"{layer.name}.weight", self._tensor(layer, "codes")
        stored = storage_type(layer.bits)
        if not self.compact or stored is None:
            return self.constant(name, codes)
        widened = f"{name}/int8"
        if name not in self.constants:
            self.constants[name] = _packed(name, codes, stored)
            self.add("Cast", [name], widened, to=TensorProto.INT8)
        return widened


def storage_type(bits: int) -> int | None:
    """The narrow type that weights are packed into; None where they need a byte or more."""
    return TensorProto.INT2 if bits <= 2 else TensorProto.INT4 if bits <= 4 else None


def _packed(name: str, codes: Array, stored: int) -> TensorProto:
    """Codes of 2 or 4 bits as a packed tensor; the first code is in the lowest bits of a byte."""
    width = 2 if stored == TensorProto.INT2 else 4
    each = 8 // width
    fields = codes.reshape(-1).astype(np.uint8) & (2**width - 1)
    fields = np.pad(fields, (0, math.ceil(fields.size / each) * each - fields.size)).reshape(-1, each)
    packed = np.bitwise_or.reduce(fields << (width * np.arange(each, dtype=np.uint8)), axis=1).astype(np.uint8)
    return helper.make_tensor(name, stored, codes.shape, packed.tobytes(), raw=True)


def missing_channels(layer: IntegerLayer, shape: Sequence[int | None]) -> int:
    """How many channels of zeros are added behind the input of a convolution that emits codes of this shape."""
    if pads_depthwise(layer, shape):
        return -layer.groups % DEPTHWISE_BLOCK
    few = layer.kind == "conv" and layer.groups == 1 and layer.weight_shape[1] in FEW_CHANNELS
    return PADDED_CHANNELS - layer.weight_shape[1] if few else 0


def pads_depthwise(layer: IntegerLayer, shape: Sequence[int | None]) -> bool:
    """Whether a layer is a depthwise convolution that takes less time with whole blocks of channels."""
    if layer.kind != "conv" or layer.output is None or not 1 < layer.groups == layer.weight_shape[0]:
        return False
    left = layer.groups % DEPTHWISE_BLOCK
    slow = left % DEPTHWISE_PART != 0 or (left != 0 and layer.groups >= MANY_CHANNELS)
    return slow and layer.weight_shape[1] == 1 and math.prod(size or 1 for size in shape[2:]) >= MANY_POSITIONS


def _along_channels(layer: IntegerLayer, values: Array) -> Array:
    """One value, or one for each output channel, in the shape in which they are combined with the output."""
    return values.reshape((-1,) + (1,) * (len(layer.weight_shape) - 2))


def _multiplies_one_position(layer: IntegerLayer, shape: Sequence[int | None]) -> bool:
    """Whether a convolution with an output of this shape reads a single position of an image with no other."""
    numbers = (*shape[2:], *layer.weight_shape[2:], *layer.stride, layer.groups)
    return layer.kind == "conv" and all(number == 1 for number in numbers) and not any(layer.padding)


def window(layer: IntegerLayer, padding: Sequence[int] = ()) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "kernel_shape": list(layer.weight_shape[2:]),
        "strides": list(layer.stride),
        "pads": [own + more for own, more in zip_longest(layer.padding * 2, padding, fillvalue=0)],
        "dilations": list(layer.dilation),
        "group": layer.groups,
    }
    if layer.kind == "conv_transpose":
        attributes["output_padding"] = list(layer.output_padding)
    return attributes
