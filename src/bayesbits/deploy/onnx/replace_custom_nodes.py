"""Step 2 of the export: standard ONNX nodes replace the custom nodes; tensors get readable names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from bayesbits.deploy.onnx.block_weights import FLOAT32
from bayesbits.deploy.onnx.custom_nodes import DOMAIN, remove_domain
from bayesbits.deploy.onnx.fast_forms import write_fast_forms
from bayesbits.deploy.onnx.hard_swish_nodes import find_integer_hard_swishes, write_hard_swish
from bayesbits.deploy.onnx.layer_nodes import LayerWriter
from bayesbits.deploy.onnx.node_writer import Array
from bayesbits.deploy.onnx.product_nodes import write_product
from bayesbits.deploy.onnx.squeeze_excitation_nodes import (
    SqueezeExcitations,
    find_squeeze_excitations,
    write_gated,
    write_mean,
)
from bayesbits.deploy.onnx.symbolic_dims import example_size, example_symbols, name_sizes
from bayesbits.deploy.onnx.tensor_names import (
    RUNTIME_DOMAIN,
    MappedTensor,
    name_inputs_and_outputs,
    write_tensor_map,
)
from bayesbits.deploy.onnx.zero_channels import missing_channels, pads_depthwise
from bayesbits.deploy.onnx.zero_padding import keep_zero_padding
from bayesbits.records.integer_network import Grid, IntegerLayer, IntegerNetwork

FUSED = frozenset(
    ("AveragePool", "Concat", "GlobalAveragePool", "LeakyRelu", "MatMul", "Mul", "Sigmoid", "Softmax", "Where")
)
"""What the runtime makes one integer operation of, with DequantizeLinear in front of all inputs and QuantizeLinear
behind."""
SUFFIX = {
    "Layer": "numbers",
    "Product": "numbers",
    "Table": "rows",
    "Matrix": "numbers",
    "Quantize": "quantized",
    "Dequantize": "dequantized",
    "Scale": "dequantized",
}


def replace_custom_nodes(model: ModelProto, network: IntegerNetwork, *, compact: bool, accuracy: int = FLOAT32) -> None:
    """Replace the custom nodes in place, name inputs and outputs, and store the map of tensors in the model."""
    symbols = example_symbols(model.graph, network.structure.input_shapes)
    squeezes = find_squeeze_excitations(model.graph, network, symbols)
    write_fast_forms(model, symbols, squeezes.inside)
    keep_zero_padding(model)
    replacement = _Replacement(model.graph, network, compact, accuracy, symbols, squeezes)
    for node in model.graph.node:
        replacement.visit(node)
    graph, writer = model.graph, replacement.writer
    del graph.node[:]
    graph.node.extend(writer.nodes)
    graph.initializer.extend(writer.constants.values())
    del graph.value_info[:]  # shapes of custom nodes; the runtime infers them itself
    remove_domain(model)
    domains = {opset.domain for opset in model.opset_import}
    if any(node.domain == RUNTIME_DOMAIN for node in graph.node) and RUNTIME_DOMAIN not in domains:
        model.opset_import.append(helper.make_opsetid(RUNTIME_DOMAIN, 1))
    name_sizes(graph, network.structure)
    names = name_inputs_and_outputs(graph, network.structure.inputs, network.structure.outputs)
    mapped = [replace(tensor, value=names.get(tensor.value, tensor.value)) for tensor in replacement.mapped]
    write_tensor_map(model, mapped)


class _Replacement:
    def __init__(
        self, graph: GraphProto, network: IntegerNetwork, compact: bool, accuracy: int, symbols: Mapping[str, int],
        squeezes: SqueezeExcitations,
    ) -> None:  # fmt: skip
        self.network, self._squeezes = network, squeezes
        self.writer = LayerWriter(network, compact, accuracy)
        self.mapped: list[MappedTensor] = []
        self._outputs = {value.name for value in graph.output}
        self._shapes = {
            value.name: [d.dim_value if d.HasField("dim_value") else None for d in value.type.tensor_type.shape.dim]
            for value in (*graph.value_info, *graph.output)
        }
        self._examples = {
            value.name: [example_size(d, symbols) for d in value.type.tensor_type.shape.dim]
            for value in (*graph.value_info, *graph.output)
        }
        """The same shapes for the example inputs."""
        self._readers: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._dequantized = {node.output[0] for node in graph.node if node.op_type in ("Dequantize", "Scale")}
        constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self._paddings = {
            node.output[0]: (node.input[0], amounts)
            for node in graph.node
            if node.op_type == "Pad" and (amounts := self._padding_of_layer(node, constants))
        }
        """The results of Pad that a convolution computes itself: from which tensor, and how much on each side."""
        self._hard_swishes = find_integer_hard_swishes(graph, network)
        self._unwritten = self._paddings.keys() | self._hard_swishes.inside | squeezes.inside
        """What no node computes, as the nodes behind read something else."""
        self._names: dict[str, str] = {}
        self._codes: dict[tuple[str, Grid] | None, str] = {}
        """The codes of a tensor on a grid without its name, which all layers read whose inputs have an equal grid."""
        self._sums = {node.input[0] for node in graph.node if node.op_type == "LayerNormalization"}
        """The results of additions that are written as Sum, which the runtime fuses with nothing. It would make
        SkipLayerNormalization of an addition and the normalization behind it, which takes three times as long as both.
        """

    def visit(self, node: NodeProto) -> None:
        """Copy a standard node, or write the nodes that replace a custom one."""
        if node.output[0] in self._unwritten:
            return
        inputs = [self._names.get(name, name) for name in node.input]
        if node.domain != DOMAIN:
            copied = self.writer.copy(node, inputs)
            if node.op_type == "Add" and self._sums.intersection(node.output):
                copied.op_type = "Sum"
            return
        of, program_node = _attribute(node, "of"), _attribute(node, "node")
        quantized = (inputs[0], replace(self.network.grid(of), name="")) if node.op_type == "Quantize" else None
        if quantized in self._codes and node.output[0] not in self._outputs:
            self._names[node.output[0]] = self._codes[quantized]
            return
        output = self._output(node, of)
        if quantized is not None:
            self._codes[quantized] = output
        if node.op_type == "Layer" and self.network.layer(of).dynamic:
            self._map_input(node, of, inputs[0])
        if node.op_type == "Product":
            name = self.writer.numbered(of)
            write_product(self.writer, self.network.product(of), (inputs[0], inputs[1]), output, name)
        elif node.op_type == "Matrix":
            self.writer.matrix(self.network.table(of), output)
        else:
            self._write(node, of, inputs[0], output)
        if node.op_type in ("Layer", "Product", "Table", "Matrix", "Quantize"):
            more = self.writer.more_read(output)
            value = self.writer.padded[output][0] if more else output
            self.mapped.append(MappedTensor(program_node, node.op_type, of, value, self._zero_point(node, of), more))

    def _map_input(self, node: NodeProto, of: str, x: str) -> None:
        """Map the numbers that a layer quantizes at run time, unless another entry of the map or an input has them."""
        computed = any(x in written.output for written in self.writer.nodes)
        if computed and all(tensor.value != x for tensor in self.mapped):
            self.mapped.append(MappedTensor(_attribute(node, "source"), "Input", f"{of}.input", x, None))

    def _padding_of_layer(self, node: NodeProto, constants: Mapping[str, Array]) -> tuple[int, ...]:
        """How much a Pad adds around the images of a convolution that alone reads it; () where it does other things.

        The amounts are those in front on every axis of the image, followed by those behind.
        """
        readers = self._readers.get(node.output[0], [])
        amounts = constants.get(node.input[1])
        number = constants.get(node.input[2]) if node.input[2:] else np.zeros(())
        if len(readers) != 1 or readers[0].op_type != "Layer" or amounts is None or number is None or node.input[3:]:
            return ()
        layer = self.network.layer(_attribute(readers[0], "of"))
        if layer.kind != "conv" or layer.output is None or layer.input is None or len(node.attribute) > 1:
            return ()
        mode = next((attribute.s for attribute in node.attribute if attribute.name == "mode"), b"constant")
        axes = len(layer.weight_shape) - 2
        front, behind = amounts[: amounts.size // 2].tolist(), amounts[amounts.size // 2 :].tolist()
        padded = (*front[-axes:], *behind[-axes:])
        plain = not any((*front[:-axes], *behind[:-axes])) and len(front) == axes + 2 and min(padded) >= 0
        zero = int(number.reshape(())) == self.network.grid(layer.input).zero_point
        return padded if plain and zero and mode == b"constant" else ()

    def _write(self, node: NodeProto, of: str, x: str, output: str) -> None:
        writer = self.writer
        if node.op_type == "Layer":
            shape, name = self._shapes[node.output[0]], self.writer.numbered(of)
            self._emit_for_depthwise(node, self.network.layer(of))
            readers = self._readers.get(node.output[0], [])
            if node.output[0] not in self._outputs and all(map(self._takes_zeros, readers)):
                writer.unread.add(output)
            source, padding = self._paddings.get(node.input[0], (x, ()))
            layer, example = self.network.layer(of), self._examples[node.output[0]]
            writer.layer(layer, self._names.get(source, source), output, name, shape, padding, example)
            return
        if node.op_type == "Table":
            writer.table(self.network.table(of), x, output)
            return
        grid = self.network.grid(of)
        if node.op_type == "Quantize" and node.input[0] in self._hard_swishes.codes:
            codes, source = self._hard_swishes.codes[node.input[0]]
            write_hard_swish(writer, source, grid, self._names.get(codes, codes), output)
        elif node.op_type == "Quantize" and (image := self._squeezes.means.get(node.input[0])) is not None:
            write_mean(writer, image, grid, self._names.get(image.name, image.name), output)
        elif node.op_type == "Quantize" and (gated := self._squeezes.products.get(node.input[0])) is not None:
            image_codes, factors = (self._names.get(one.name, one.name) for one in (gated.image, gated.factors))
            write_gated(writer, gated, grid, (image_codes, factors), output)
        elif node.op_type == "Quantize":
            writer.quantize(grid, x, output)
        elif node.op_type == "Dequantize":
            writer.dequantize(grid, x, output, at_once=self._may_dequantize_at_once(node))
        elif node.op_type == "Scale":
            writer.scale(grid, x, output)
        elif node.op_type == "ToFloat":
            writer.to_float_codes(grid, x, output)
        else:
            writer.to_uint8_codes(grid, x, output)

    def _emit_for_depthwise(self, node: NodeProto, layer: IntegerLayer) -> None:
        """Let a convolution emit the channels of zeros that a depthwise convolution behind it reads."""
        if layer.kind != "conv" or layer.groups != 1 or layer.output is None:
            return
        for reader in self._readers.get(node.output[0], []):
            if reader.op_type == "Layer":
                behind, shape = self.network.layer(_attribute(reader, "of")), self._examples[reader.output[0]]
                if pads_depthwise(behind, shape):
                    self.writer.more_channels[layer.name] = missing_channels(behind, shape)

    def _takes_zeros(self, reader: NodeProto) -> bool:
        """Whether a node is a convolution that can read channels of zeros behind those of its input."""
        if reader.op_type != "Layer":
            return False
        layer, shape = self.network.layer(_attribute(reader, "of")), self._examples[reader.output[0]]
        if layer.kind != "conv" or layer.output is None or len(shape) != len(layer.weight_shape):
            return False
        return layer.groups == 1 or pads_depthwise(layer, shape)

    def _may_dequantize_at_once(self, node: NodeProto) -> bool:
        """Whether DequantizeLinear can be written without changing the result; additions behind it become Sum."""
        readers = self._readers.get(node.output[0], [])
        if all(reader.op_type == "Quantize" for reader in readers) or any(map(self._is_fused, readers)):
            return False
        self._sums.update(name for reader in readers if reader.op_type == "Add" for name in reader.output)
        return True

    def _is_fused(self, node: NodeProto) -> bool:
        """Whether the runtime might make one integer operation of a node and the quantizers around it."""
        inputs = node.input[1:] if node.op_type == "Where" else node.input
        return (
            node.op_type in FUSED
            and node.output[0] not in self._unwritten
            and self._dequantized.issuperset(inputs)
            and any(reader.op_type == "Quantize" for reader in self._readers.get(node.output[0], []))
        )

    def _output(self, node: NodeProto, of: str) -> str:
        """A readable name of the tensor; outputs of the network are named later."""
        name: str = node.output[0]
        if name not in self._outputs and node.op_type in SUFFIX:
            codes = self._emits(node, of) is not None
            self._names[name] = self.writer.numbered(of, f".{'codes' if codes else SUFFIX[node.op_type]}")
            name = self._names[name]
        return name

    def _emits(self, node: NodeProto, of: str) -> str | None:
        """The grid whose codes a layer or product emits; None where it emits numbers, and for other nodes."""
        if node.op_type == "Product":
            return self.network.product(of).output
        return self.network.layer(of).output if node.op_type == "Layer" else None

    def _zero_point(self, node: NodeProto, of: str) -> int | None:
        name = of if node.op_type == "Quantize" else self._emits(node, of)
        grid = None if name is None else self.network.grid(name)
        return grid.zero_point if grid is not None and grid.carrier == "uint8" else None


def _attribute(node: NodeProto, key: str) -> str:
    value: bytes = next(attribute.s for attribute in node.attribute if attribute.name == key)
    return value.decode()
