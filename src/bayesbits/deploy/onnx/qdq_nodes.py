"""Form "qdq", step 2: standard operations between QuantizeLinear and DequantizeLinear replace the custom nodes.

- A tensor on a grid of up to 8 bits is QuantizeLinear -> DequantizeLinear: uint8 codes where no number is below zero or
  the range is asymmetric, int8 codes with a zero point of 0 where it is symmetric. QuantizeLinear saturates at the ends
  of its type; in front of it stands a Clip of numbers where the grid ends before, or where an activation function such
  as ReLU was absorbed by a layer.
- A layer is the operation of its float network; a linear one is MatMul and Add. Its weight is stored as int8 codes with
  a zero point of 0, which DequantizeLinear reads, with one step or with one for each output channel. Its bias is stored
  as numbers, which lie on the grid of the layer's sums already: some runtimes read no codes of 32 bits. The codes of a
  layer that reads float activations are converted by Cast and Mul: behind DequantizeLinear onnxruntime would round its
  activations to 8 bits.
- A product of two activations is MatMul, a table of embeddings is Gather, Cast and Mul, and a weight of a recurrent
  layer is Cast and Mul, as in the other forms.
- What the other forms do for onnxruntime alone (operations of its own domain, channels of zeros, other operations for
  sums) is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from bayesbits.deploy.onnx.custom_nodes import DOMAIN, remove_domain
from bayesbits.deploy.onnx.node_writer import Array, NodeWriter, window
from bayesbits.deploy.onnx.replace_custom_nodes import SUFFIX
from bayesbits.deploy.onnx.symbolic_dims import name_sizes
from bayesbits.deploy.onnx.tensor_names import MappedTensor, name_inputs_and_outputs, write_tensor_map
from bayesbits.deploy.onnx.zero_padding import keep_zero_padding
from bayesbits.records.integer_network import Grid, IntegerLayer, IntegerNetwork, IntegerProduct
from bayesbits.records.topology import output_axis


def replace_custom_nodes(model: ModelProto, network: IntegerNetwork) -> None:
    """Replace the custom nodes in place, name inputs and outputs, and store the map of tensors in the model."""
    keep_zero_padding(model)
    graph, replacement = model.graph, _Replacement(model.graph, network)
    for node in graph.node:
        replacement.visit(node)
    del graph.node[:]
    graph.node.extend(replacement.writer.nodes)
    graph.initializer.extend(replacement.writer.constants.values())
    del graph.value_info[:]  # shapes of custom nodes; the runtime infers them itself
    remove_domain(model)
    name_sizes(graph, network.structure)
    names = name_inputs_and_outputs(graph, network.structure.inputs, network.structure.outputs)
    mapped = [replace(tensor, value=names.get(tensor.value, tensor.value)) for tensor in replacement.mapped]
    write_tensor_map(model, mapped, form="qdq")


class _Replacement:
    def __init__(self, graph: GraphProto, network: IntegerNetwork) -> None:
        self.network, self.writer = network, QdqWriter(network, compact=False)
        self.mapped: list[MappedTensor] = []
        self._outputs = {value.name for value in graph.output}
        self._ranks = {
            value.name: len(value.type.tensor_type.shape.dim) for value in (*graph.value_info, *graph.output)
        }
        self._names: dict[str, str] = {}

    def visit(self, node: NodeProto) -> None:
        """Copy a standard node, or write the nodes that replace a custom one."""
        inputs = [self._names.get(name, name) for name in node.input]
        if node.domain != DOMAIN:
            self.writer.copy(node, inputs)
            return
        attributes = {attribute.name: attribute.s.decode() for attribute in node.attribute}
        kind, of = node.op_type, attributes["of"]
        output: str = node.output[0]
        if output not in self._outputs:
            self._names[output] = self.writer.numbered(of, f".{SUFFIX[kind]}")
        output = self._names.get(output, output)
        if kind == "Layer":
            layer = self.network.layer(of)
            self.writer.rounded_layer(layer, inputs[0], output, self.writer.numbered(of), self._ranks[node.output[0]])
        elif kind == "Product":
            self.writer.rounded_product(self.network.product(of), inputs, output, self.writer.numbered(of))
        elif kind == "Table":
            self.writer.table(self.network.table(of), inputs[0], output)
        elif kind == "Matrix":
            self.writer.matrix(self.network.table(of), output)
        else:
            self.writer.quantize(self.network.grid(of), inputs[0], output)
        self.mapped.append(MappedTensor(attributes["node"], kind, of, output, None))


class QdqWriter(NodeWriter):
    """Collects the nodes and constants that replace custom nodes."""

    def quantize(self, grid: Grid, x: str, output: str) -> None:
        """Numbers to the numbers of a grid."""
        self._round(grid, x, output, grid.low, grid.high, grid.name)

    def rounded_layer(self, layer: IntegerLayer, x: str, output: str, name: str, rank: int) -> None:
        """A layer with an output of this rank, on the grid of its output where it has one."""
        if layer.output is None:
            self._layer(layer, x, output, name, rank)
            return
        self._layer(layer, x, f"{name}/sum", name, rank)
        grid = self.network.grid(layer.output)
        self._round(grid, f"{name}/sum", output, layer.output_low, layer.output_high, f"{layer.name}.codes")

    def rounded_product(self, product: IntegerProduct, operands: Sequence[str], output: str, name: str) -> None:
        """A product of two activations, on the grid of its output where it has one."""
        if product.output is None:
            self.add("MatMul", operands, output, name=name)
            return
        self.add("MatMul", operands, f"{name}/sum", name=name)
        grid = self.network.grid(product.output)
        self._round(grid, f"{name}/sum", output, product.output_low, product.output_high, f"{product.name}.codes")

    def _round(self, grid: Grid, x: str, output: str, low: int, high: int, owner: str) -> None:
        """Numbers to those of a grid, between two codes whose constants belong to `owner`."""
        step = np.float32(grid.step)
        if grid.carrier != "uint8":  # QuantizeLinear of opset 18 has no wider codes
            bounds = self.bounds(owner, np.float32(low), np.float32(high))
            size = self.constant(f"{grid.name}.step", step)
            codes = self.add("Round", [self.add("Div", [x, size], f"{output}/divided")], f"{output}/rounded")
            self.add("Mul", [self.add("Clip", [codes, *bounds], f"{output}/codes"), size], output)
            return
        zero = zero_point(grid)
        if not holds_whole_type(zero, low, high):
            bounds = self.bounds(owner, np.float32(low) * step, np.float32(high) * step)
            x = self.add("Clip", [x, *bounds], f"{output}/clip")
        constants = [self.constant(f"{grid.name}.step", step), self.constant(f"{grid.name}.zero_point", zero)]
        codes = self.add("QuantizeLinear", [x, *constants], f"{output}/codes")
        self.add("DequantizeLinear", [codes, *constants], output)

    def _layer(self, layer: IntegerLayer, x: str, output: str, name: str, rank: int) -> None:
        if layer.kind != "linear" and rank < len(layer.weight_shape):  # an image without a batch axis
            first = self.constant("first axis", np.array([0]))
            x = self.add("Unsqueeze", [x, first], f"{name}/batch")
            self._layer(layer, x, f"{name}/batch/output", name, rank + 1)
            self.add("Squeeze", [f"{name}/batch/output", first], output)
            return
        operands = [x, self._numbers(layer, name)]
        bias = [self.constant(f"{layer.name}.bias", self.network.bias_numbers(layer).numpy())] if layer.bias else []
        if layer.kind == "linear":
            product = self.add("MatMul", operands, f"{name}/product" if bias else output, name=name)
            if bias:
                self.add("Add", [product, *bias], output)
        else:
            operation = "Conv" if layer.kind == "conv" else "ConvTranspose"
            self.add(operation, [*operands, *bias], output, name=name, **window(layer))

    def _numbers(self, layer: IntegerLayer, name: str) -> str:
        """The numbers of a weight; that of a linear layer is transposed, as MatMul wants it."""
        codes, output = self.network.tensors.get(f"{layer.name}.codes"), f"{name}/weight"
        stored: Array = (self.network.tensors[f"{layer.name}.weight"] if codes is None else codes).numpy()
        transposed = layer.kind == "linear"
        weight = self.constant(f"{layer.name}.weight", stored.T if transposed else stored)
        if codes is None:
            return weight
        steps, axis = self._steps(layer), 1 if transposed else output_axis(layer.kind, layer.groups)
        if not holds_codes(layer):
            steps = steps.reshape([-1 if own == axis else 1 for own in range(stored.ndim)] if steps.ndim else ())
            wide = self.add("Cast", [weight], f"{output}/codes", to=TensorProto.FLOAT)
            return self.add("Mul", [wide, self.constant(f"{layer.name}.weight.step", steps)], output)
        zeros = self.constant(f"{layer.name}.weight.zero_point", np.zeros(steps.shape, np.int8))
        step = self.constant(f"{layer.name}.weight.step", steps)
        return self.add("DequantizeLinear", [weight, step, zeros], output, axis=axis if steps.ndim else 0)


def zero_point(grid: Grid) -> np.int8 | np.uint8:
    """The zero point of a grid of up to 8 bits, in the type of its codes."""
    return np.int8(0) if grid.kind == "symmetric" else np.uint8(grid.zero_point)


def holds_codes(layer: IntegerLayer) -> bool:
    """Whether DequantizeLinear reads the weight of a layer, whose opset 18 has no codes of 16 bits."""
    return layer.arithmetic == "integer" and layer.bits <= 8


def holds_whole_type(zero: np.int8 | np.uint8, low: int, high: int) -> bool:
    """Whether two codes are the ends of the type of a zero point, at which QuantizeLinear saturates by itself."""
    ends = np.iinfo(zero.dtype)
    return (low + int(zero), high + int(zero)) == (ends.min, ends.max)


def grids_of(network: IntegerNetwork, tensors: Sequence[MappedTensor]) -> dict[str, Grid]:
    """The grid of every mapped tensor that lies on one, by the tensor's name in the file."""
    emitted = {part.name: part.output for part in network.parts}
    names = {each.value: each.of if each.kind == "Quantize" else emitted.get(each.of) for each in tensors}
    return {value: network.grid(name) for value, name in names.items() if name is not None}
