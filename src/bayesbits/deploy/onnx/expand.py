"""Opaque nodes of an ONNX graph become what they stand for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from onnx import GraphProto, ModelProto, NodeProto

from bayesbits.deploy.onnx.inputs_outputs import name_ends
from bayesbits.deploy.onnx.nodes import Writer, other_node
from bayesbits.deploy.onnx.tensor_names import Checkpoint, write_checkpoints
from bayesbits.deploy.onnx.torch_graph import DOMAIN
from bayesbits.records.integer_network import IntegerNetwork

SUFFIX = {"Layer": "numbers", "Quantize": "quantized", "Dequantize": "dequantized", "Scale": "dequantized"}


def expand(model: ModelProto, network: IntegerNetwork, *, compact: bool) -> None:
    """Replace the opaque nodes, in place, name inputs and outputs as the user does, and note where everything is."""
    expansion = _Expansion(model.graph, network, compact)
    for node in model.graph.node:
        expansion.visit(node)
    graph, writer = model.graph, expansion.writer
    del graph.node[:]
    graph.node.extend(writer.nodes)
    graph.initializer.extend(writer.constants.values())
    del graph.value_info[:]  # shapes of opaque nodes; the runtime finds them by itself
    for index, opset in reversed(list(enumerate(model.opset_import))):
        if opset.domain == DOMAIN:
            del model.opset_import[index]
    names = name_ends(graph, network.structure.inputs, network.structure.outputs)
    write_checkpoints(
        model, [replace(found, value=names.get(found.value, found.value)) for found in expansion.checkpoints]
    )


class _Expansion:
    def __init__(self, graph: GraphProto, network: IntegerNetwork, compact: bool) -> None:
        self.network = network
        self.writer = Writer(network, compact)
        self.checkpoints: list[Checkpoint] = []
        self._outputs = {value.name for value in graph.output}
        self._shapes = {
            value.name: [d.dim_value if d.HasField("dim_value") else None for d in value.type.tensor_type.shape.dim]
            for value in (*graph.value_info, *graph.output)
        }
        self._readers: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._names: dict[str, str] = {}
        self._calls: Counter[tuple[str, str]] = Counter()
        self._sums: set[str] = set()

    def visit(self, node: NodeProto) -> None:
        """Copy a node, or write what an opaque one stands for."""
        inputs = [self._names.get(name, name) for name in node.input]
        if node.domain != DOMAIN:
            copied = NodeProto()
            copied.CopyFrom(node)
            copied.name = other_node(node.name)
            del copied.input[:]
            copied.input.extend(inputs)
            if self._sums.intersection(node.output):
                copied.op_type = "Sum"
            self.writer.nodes.append(copied)
            return
        of, program_node = _attribute(node, "of"), _attribute(node, "node")
        output = self._output(node, of)
        self._write(node, of, inputs[0], output)
        if node.op_type in ("Layer", "Quantize"):
            self.checkpoints.append(Checkpoint(program_node, node.op_type, of, output, self._zero_point(node, of)))

    def _write(self, node: NodeProto, of: str, x: str, output: str) -> None:
        writer = self.writer
        if node.op_type == "Layer":
            shape, name = self._shapes[node.output[0]], self._numbered("", of)
            writer.layer(self.network.layer(of), x, output, name, shape)
            return
        grid = self.network.grid(of)
        if node.op_type == "Quantize":
            writer.quantize(grid, x, output)
        elif node.op_type == "Dequantize":
            writer.dequantize(grid, x, output, for_additions=self._only_added(node))
        elif node.op_type == "Scale":
            writer.scale(grid, x, output)
        elif node.op_type == "Center":
            writer.center(grid, x, output)
        else:
            writer.carry(grid, x, output)

    def _only_added(self, node: NodeProto) -> bool:
        """Whether numbers are operands of additions, and quantized again at most; the additions become sums."""
        readers = self._readers.get(node.output[0], [])
        added = [reader for reader in readers if reader.op_type == "Add"]
        if not added or any(reader.op_type not in ("Add", "Quantize") for reader in readers):
            return False
        self._sums.update(name for reader in added for name in reader.output)
        return True

    def _output(self, node: NodeProto, of: str) -> str:
        """A name that says what the tensor is, but where it is an output of the network."""
        name: str = node.output[0]
        if name not in self._outputs and node.op_type in SUFFIX:
            codes = node.op_type == "Layer" and self.network.layer(of).output is not None
            self._names[name] = self._numbered("codes" if codes else SUFFIX[node.op_type], of)
            name = self._names[name]
        return name

    def _numbered(self, suffix: str, of: str) -> str:
        self._calls[suffix, of] += 1
        name = f"{of}.{suffix}" if suffix else of
        count = self._calls[suffix, of]
        return name if count == 1 else f"{name}#{count}"

    def _zero_point(self, node: NodeProto, of: str) -> int | None:
        name = self.network.layer(of).output if node.op_type == "Layer" else of
        grid = None if name is None else self.network.grid(name)
        return grid.zero_point if grid is not None and grid.carrier == "uint8" else None


def _attribute(node: NodeProto, key: str) -> str:
    value: bytes = next(attribute.s for attribute in node.attribute if attribute.name == key)
    return value.decode()
