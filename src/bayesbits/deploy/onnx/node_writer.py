"""The nodes and constants of an ONNX graph, as they are collected: quantizers, tables, stored weights.

`layer_nodes` adds layers as onnxruntime runs them fastest, and `qdq_nodes` layers that other runtimes read.

- Codes that float operations read are dequantized by DequantizeLinear. Between it and QuantizeLinear the runtime would
  fuse some operations to QLinearMul and the like, whose rounding depends on the CPU: in front of those, codes are
  dequantized by Cast, Sub and Mul.
- A table of embeddings is Gather of its codes, Cast and Mul by the steps, which are gathered by row.
- A weight of a recurrent layer is Cast of its codes and Mul by the steps, which the runtime computes once, when it
  loads the file.
- In the compact form, weights of 2 and 4 bits are stored as int2 and int4 and cast to int8; the runtime computes the
  cast once, when it loads the file.

"uint8 codes" are code plus zero point, "float codes" are whole numbers in float32, centered at zero.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from bayesbits.deploy.onnx.tensor_names import auxiliary_node
from bayesbits.records.integer_network import Grid, IntegerLayer, IntegerNetwork, IntegerTable

Array = NDArray[Any]


class NodeWriter:
    """Collects the nodes and constants that replace custom nodes."""

    def __init__(self, network: IntegerNetwork, compact: bool) -> None:
        self.network, self.compact = network, compact
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, TensorProto] = {}
        self._calls: Counter[tuple[str, str]] = Counter()

    def add(
        self, operation: str, inputs: Sequence[str], output: str, name: str | None = None, **attributes: Any
    ) -> str:
        """Add a node and return its output; the node that computes a layer is given the layer's name."""
        name = auxiliary_node(output) if name is None else name
        self.nodes.append(helper.make_node(operation, list(inputs), [output], name=name, **attributes))
        return output

    def split(self, x: str, sizes: str, output: str, count: int) -> list[str]:
        """Parts of a tensor along its channels, of these sizes."""
        parts = [f"{output}{place}" for place in range(count)]
        self.nodes.append(helper.make_node("Split", [x, sizes], parts, name=auxiliary_node(output), axis=1))
        return parts

    def constant(self, name: str, value: Array | np.generic) -> str:
        """Add a constant, or find the one of this name."""
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
        return name

    def copy(self, node: NodeProto, inputs: Sequence[str]) -> NodeProto:
        """Add a copy of a node of the network that reads other inputs."""
        copied = NodeProto()
        copied.CopyFrom(node)
        copied.name = auxiliary_node(node.name)
        copied.input[:] = inputs
        self.nodes.append(copied)
        return copied

    def bounds(self, owner: str, low: np.generic, high: np.generic) -> list[str]:
        """The constants of a Clip, which belong to a grid or a layer."""
        return [self.constant(f"{owner}.{end}", value) for end, value in (("low", low), ("high", high))]

    def numbered(self, name: str, suffix: str = "") -> str:
        """A readable name of a node or tensor; from its second call on with a number, marked otherwise than layers."""
        self._calls[name, suffix] += 1
        count = self._calls[name, suffix]
        return f"{name}{suffix}" if count == 1 else f"{name}{suffix}@{count}"

    def grid_constants(self, grid: Grid) -> list[str]:
        """The constants of a grid: its step and its zero point."""
        return [
            self.constant(f"{grid.name}.step", np.float32(grid.step)),
            self.constant(f"{grid.name}.zero_point", np.uint8(grid.zero_point)),
        ]

    def quantize(self, grid: Grid, x: str, output: str) -> None:
        """Numbers to the codes of a grid: uint8 codes up to 8 bits, float codes above."""
        if grid.carrier == "uint8":
            self._quantize_linear(grid, x, output, grid.low, grid.high, grid.name)
            return
        step = self.constant(f"{grid.name}.step", np.float32(grid.step))
        codes = self.add("Round", [self.add("Div", [x, step], f"{output}/divided")], f"{output}/rounded")
        self.add("Clip", [codes, *self.bounds(grid.name, np.float32(grid.low), np.float32(grid.high))], output)

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

    def matrix(self, table: IntegerTable, output: str) -> None:
        """A weight of a recurrent layer: all codes, multiplied by the step of their row."""
        if f"{table.name}.codes" not in self.network.tensors:
            self.add("Identity", [self.constant(f"{table.name}.weight", self._tensor(table, "weight"))], output)
            return
        numbers = self.add("Cast", [self._weight(table)], f"{output}/codes", to=TensorProto.FLOAT)
        steps = self._tensor(table, "steps")
        step = self.constant(f"{table.name}.weight.step", steps.reshape((-1, 1) if steps.size > 1 else ()))
        self.add("Mul", [numbers, step], output)

    def _quantize_linear(self, grid: Grid, x: str, output: str, low: int, high: int, owner: str) -> None:
        """Numbers to uint8 codes inside bounds."""
        node = partial(self.add, "QuantizeLinear", [x, *self.grid_constants(grid)])
        self.clip_codes(node, grid, output, low, high, owner)

    def clip_codes(self, write: Callable[[str], str], grid: Grid, output: str, low: int, high: int, owner: str) -> None:
        """Uint8 codes of a node that `write` adds, inside bounds; without a Clip where these are those of uint8."""
        low, high = low + grid.zero_point, high + grid.zero_point
        if (low, high) == (0, 255):
            write(output)
            return
        codes = write(f"{output}/unclipped")
        self.add("Clip", [codes, *self.bounds(owner, np.uint8(low), np.uint8(high))], output)

    def _tensor(self, layer: IntegerLayer | IntegerTable, what: str) -> Array:
        array: Array = self.network.tensors[f"{layer.name}.{what}"].numpy()
        return array

    def _steps(self, layer: IntegerLayer) -> Array:
        steps = self._tensor(layer, "steps").astype(np.float32)
        return steps.reshape(()) if steps.size == 1 else steps

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
