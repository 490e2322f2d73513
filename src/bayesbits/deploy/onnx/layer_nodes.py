"""The standard ONNX nodes of layers, which onnxruntime fuses into integer kernels.

Every pattern was chosen by experiment so that two things hold at once: with default options the runtime runs the layer
in integers, and its result is known bit by bit. Another runtime that fuses other patterns needs another writer.

- A layer that emits codes is DequantizeLinear -> Conv or Gemm -> QuantizeLinear -> integer Clip, which becomes
  QLinearConv or QGemm. A float Clip in front of QuantizeLinear would prevent the fusion.
- A linear layer that emits numbers is MatMulInteger, an Add of the bias, a Cast and a Mul by the scale. As Gemm,
  followed by a float function, it would become a float kernel.
- A convolution that emits numbers is a Conv of whole numbers in float32, as ConvInteger takes three to twenty times as
  long. It is exact, as no sum can reach 2^24: where one could, a part of the input channels is summed at a time, and
  the parts are added as integers. Behind it are a Round, without which the runtime would multiply the weight by the
  scale, and a Mul by the scale. ConvInteger is left for groups of large sums, and for many parts.
- A linear layer whose bias is added to its numbers is MatMulIntegerToFloat of the runtime's own domain, which the
  runtime makes of standard nodes only where the step of the input is computed at run time.
- A linear layer whose input is quantized at run time is DynamicQuantizeLinear and MatMulInteger (see `run_time_nodes`).
- A convolution of an image with one position that emits numbers is written as a linear layer: the runtime's ConvInteger
  takes ten times as long.
- Convolutions of few channels and depthwise ones are given channels of zeros (see `zero_channels`), and groups of few
  channels are computed together (see `merged_groups`).
- A float layer whose weight has a step for every group of inputs is MatMulNBits (see `block_weights`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from bayesbits.deploy.exact_sums import exact_parts
from bayesbits.deploy.onnx.block_weights import FLOAT32, stored_bits, write_block_product, write_expanded_weight
from bayesbits.deploy.onnx.merged_groups import write_merged_weight
from bayesbits.deploy.onnx.node_writer import Array, NodeWriter, window
from bayesbits.deploy.onnx.run_time_nodes import RunTimeNodes
from bayesbits.deploy.onnx.tensor_names import RUNTIME_DOMAIN
from bayesbits.deploy.onnx.zero_channels import missing_channels, pads_depthwise
from bayesbits.records.integer_network import Grid, IntegerLayer, IntegerNetwork
from bayesbits.records.topology import output_axis


class LayerWriter(NodeWriter):
    """Collects nodes and constants, those of layers among them."""

    def __init__(self, network: IntegerNetwork, compact: bool, accuracy: int = FLOAT32) -> None:
        """`accuracy`: the accuracy level of products with weights in groups."""
        super().__init__(network, compact)
        self.accuracy = accuracy
        self.more_channels: dict[str, int] = {}
        """How many channels of zeros layers emit behind their own, by the name of the layer."""
        self.padded: dict[str, tuple[str, int]] = {}
        """The tensors that hold such channels as well, and how many, by the name of the tensor without them."""
        self.unread: set[str] = set()
        """The tensors without them that nothing reads: they are not written."""
        self.run_time = RunTimeNodes(self)

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
        elif self.network.adds_bias_to_numbers(layer):
            self._scaled_product(layer, x, output, name)
        elif layer.output is None and _multiplies_one_position(layer, shape):
            self._matrix_product(layer, x, output, name)
        elif layer.output is None and layer.kind == "conv" and (parts := exact_parts(self.network, layer)) is not None:
            self._convolution_of_whole_numbers(layer, parts, x, output, name)
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
        more_in = self.more_read(x) or missing_channels(layer, example)
        if depthwise and x not in self.padded and max(layer.stride) > 1:  # padding its large input takes as long
            depthwise, more_in = False, 0
        more_out = more_in if depthwise else self.more_channels.get(layer.name, 0)
        x = self._padded_input(layer, x, name, more_in) if more_in else x
        weight, groups = write_merged_weight(self, layer, self._weight(layer), name)
        weight = self._padded(layer, "weight", weight, name, [more_out, 0 if depthwise else more_in])
        operands = [self.add("DequantizeLinear", [x, *self.grid_constants(self._input(layer))], f"{name}/input")]
        operands.append(self._dequantized(layer, "weight", weight, name, self._steps(layer), more_out))
        if layer.bias:
            bias = self.constant(f"{layer.name}.bias", self._tensor(layer, "bias"))
            bias = self._padded(layer, "bias", bias, name, [more_out])
            operands.append(self._dequantized(layer, "bias", bias, name, self._accumulator_steps(layer), more_out))
        operation, attributes = ("Conv", window(layer, padding)) if layer.kind == "conv" else ("Gemm", {"transB": 1})
        if layer.kind == "conv":
            attributes["group"] = groups + more_out if depthwise else groups
        result = self.add(operation, operands, f"{name}/sum", name=name, **attributes)
        assert layer.output is not None
        target = f"{name}/codes" if flat else f"{output}/padded" if more_out else output
        grid = self.network.grid(layer.output)
        self._quantize_linear(grid, result, target, layer.output_low, layer.output_high, f"{layer.name}.codes")
        if flat:
            self.add("Reshape", [target, self._sizes(layer, given, name, shape)], output)
        elif more_out:
            self.padded[output] = target, more_out
        if more_out and output not in self.unread:
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

    def more_read(self, x: str) -> int:
        """How many channels of zeros all readers of a tensor read behind its own."""
        return self.padded[x][1] if x in self.padded and x in self.unread else 0

    def _padded_input(self, layer: IntegerLayer, x: str, name: str, more: int) -> str:
        """The codes that a layer reads, with channels of zeros behind them; the layer in front may emit those, too."""
        if x in self.padded:
            return self.padded[x][0]
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
        """A layer that emits numbers: the integer sum of products and bias, converted to float and scaled."""
        operands = [x, weight, self.grid_constants(self._input(layer))[1]]
        if layer.kind == "conv":
            total = self.add("ConvInteger", operands, f"{name}/sum", name=name, **window(layer))
        else:
            operands[1] = self.add("Transpose", [operands[1]], f"{name}/turned", perm=[1, 0])
            total = self.add("MatMulInteger", operands, f"{name}/sum", name=name)
        axes = (-1,) + (1,) * (len(layer.weight_shape) - 2)
        if layer.bias:
            bias = self.constant(f"{layer.name}.bias", self._tensor(layer, "bias").reshape(axes))
            total = self.add("Add", [total, bias], f"{name}/biased")
        number = self.add("Cast", [total], f"{name}/number", to=TensorProto.FLOAT)
        steps = self._accumulator_steps(layer)
        steps = steps.reshape(axes if steps.size > 1 else ())
        self.add("Mul", [number, self.constant(f"{layer.name}.scale", steps)], output)

    def _scaled_product(self, layer: IntegerLayer, x: str, output: str, name: str) -> None:
        """A linear layer that emits numbers, to which its bias is added: one kernel of the runtime."""
        step, zero_point = self.grid_constants(self._input(layer))
        weight = self.add("Transpose", [self._weight(layer)], f"{name}/turned", perm=[1, 0])
        steps = self._tensor(layer, "steps")
        weight_step = self.constant(f"{layer.name}.weight.step", steps.reshape(-1 if steps.size > 1 else ()))
        bias = [self.constant(f"{layer.name}.bias", self._tensor(layer, "bias"))] if layer.bias else []
        inputs = [x, weight, step, weight_step, zero_point, "", *bias]
        self.add("MatMulIntegerToFloat", inputs, output, name=name, domain=RUNTIME_DOMAIN)

    def _convolution_of_whole_numbers(
        self, layer: IntegerLayer, parts: Sequence[int], x: str, output: str, name: str
    ) -> None:
        """A convolution that emits numbers: float codes are multiplied and summed exactly, and the sums are scaled."""
        axes = (1,) * (len(layer.weight_shape) - 2)
        weight = self.add("Cast", [self._weight(layer)], f"{name}/weight", to=TensorProto.FLOAT)
        bias = self.constant(f"{layer.name}.bias", self._tensor(layer, "bias")) if layer.bias else None
        if len(parts) == 1:
            operands = [self.to_float_codes(self._input(layer), x, f"{name}/input"), weight]
            if bias is not None:
                operands.append(self.add("Cast", [bias], f"{name}/bias", to=TensorProto.FLOAT))
            number = self.add("Conv", operands, f"{name}/sum", name=name, **window(layer))
            number = self.add("Round", [number], f"{name}/number")
        else:
            sizes = self.constant(f"{layer.name}.parts", np.array(parts))
            inputs = self.split(x, sizes, f"{name}/input/part", len(parts))
            weights = self.split(weight, sizes, f"{name}/weight/part", len(parts))
            sums = []
            for place, (codes, part) in enumerate(zip(inputs, weights, strict=True)):
                operands = [self.to_float_codes(self._input(layer), codes, f"{codes}/number"), part]
                own = f"{name}/part{place}" if place else name
                total = self.add("Conv", operands, f"{name}/sum{place}", name=own, **window(layer))
                sums.append(self.add("Cast", [total], f"{total}/integer", to=TensorProto.INT32))
            if bias is not None:
                sizes = self.constant(f"{layer.name}.bias.shape", np.array([-1, *axes]))
                sums.append(self.add("Reshape", [bias, sizes], f"{name}/bias"))
            whole = sums[0]
            for place, part in enumerate(sums[1:]):
                whole = self.add("Add", [whole, part], f"{name}/whole{place}")
            number = self.add("Cast", [whole], f"{name}/number", to=TensorProto.FLOAT)
        steps = self._accumulator_steps(layer)
        steps = steps.reshape((-1, *axes) if steps.size > 1 else ())
        self.add("Mul", [number, self.constant(f"{layer.name}.scale", steps)], output)

    def _transposed_convolution(self, layer: IntegerLayer, x: str, output: str, name: str) -> None:
        """A transposed convolution of float codes, which is exact; the runtime has no integer kernel for it."""
        codes = self.to_float_codes(self._input(layer), x, f"{name}/input")
        weight = self.add("Cast", [self._weight(layer)], f"{name}/weight", to=TensorProto.FLOAT)
        total = self.add("ConvTranspose", [codes, weight], f"{name}/sum", name=name, **window(layer))
        axes = (-1,) + (1,) * (len(layer.weight_shape) - 2)
        if layer.bias:
            bias = self.constant(f"{layer.name}.bias", self._tensor(layer, "bias").reshape(axes))
            number = self.add("Cast", [bias], f"{name}/bias", to=TensorProto.FLOAT)
            total = self.add("Add", [total, number], f"{name}/biased")
        steps = self._accumulator_steps(layer)
        last = output if layer.output is None else f"{name}/numbers"
        if layer.output is not None:
            steps = steps / np.float32(self.network.grid(layer.output).step)
        steps = steps.reshape(axes if steps.size > 1 else ())
        scaled = self.add("Mul", [total, self.constant(f"{layer.name}.scale", steps)], last)
        if layer.output is not None:
            ends = np.float32(layer.output_low), np.float32(layer.output_high)
            bounds = self.bounds(f"{layer.name}.codes", *ends)
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

    def _input(self, layer: IntegerLayer) -> Grid:
        assert layer.input is not None
        return self.network.grid(layer.input)

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


def _multiplies_one_position(layer: IntegerLayer, shape: Sequence[int | None]) -> bool:
    """Whether a convolution with an output of this shape reads a single position of an image with no other."""
    numbers = (*shape[2:], *layer.weight_shape[2:], *layer.stride, layer.groups)
    return layer.kind == "conv" and all(number == 1 for number in numbers) and not any(layer.padding)
