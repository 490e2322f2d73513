"""An ONNX graph as subgraphs, each from the mapped tensors in front of it to one mapped tensor or output.

A subgraph is a model of its own. On the deployed network's values it is judged by what it computes itself, and not by
differences in front of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.onnx.runtime import layer_of
from bayesbits.deploy.onnx.tensor_names import MappedTensor
from bayesbits.deploy.verification.code_operations import ON_CODES

# fmt: off
MOVES = frozenset((
    "Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Pad", "ReduceMax", "Reshape", "Shape",
    "Slice", "Split", "Squeeze", "Sub", "Transpose", "Unsqueeze",
))
# Operations that move values, and element-wise operations whose result IEEE arithmetic defines bit by bit.
EXACT = MOVES | frozenset((
    "Add", "Clip", "Div", "DequantizeLinear", "Max", "Min", "Mul", "Neg", "QuantizeLinear", "Relu", "Round", "Sum",
    "ConstantOfShape", "Mod", "Range", "ReduceProd",  # of sizes
))
# fmt: on
WHOLE = MOVES | frozenset(("ReduceSum",))
NORMALIZATIONS = frozenset({"GroupNormalization", "InstanceNormalization", "LayerNormalization"})
KINDS = {
    "Layer": "layer",
    "Product": "product",
    "Table": "table",
    "Matrix": "table",
    "Quantize": "quantizer",
    "Input": "input",
}
AVERAGES = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum"})


@dataclass(frozen=True)
class Subgraph:
    """The nodes that compute one tensor from the mapped tensors in front of it."""

    name: str
    """The name of the layer, of the quantized tensor, or of the output."""
    kind: str
    """"layer", "product", "table", "quantizer", "input" (of a layer that quantizes it at run time) or "output"."""
    value: str
    """The name of the tensor that it computes."""
    mapped: MappedTensor | None
    """The entry of that tensor in the map; None where it is an output that no layer or quantizer computes."""
    inputs: tuple[str, ...]
    """The tensors that it reads: mapped tensors, or inputs of the network."""
    nodes: tuple[NodeProto, ...]
    """The nodes, in the order of the graph."""
    integer_layers: Collection[str]
    """The layers and products that compute with integers."""
    exporter_constants: Collection[str]
    """The constants that the exporter computed."""
    code_inputs: Collection[str]
    """The inputs that hold codes."""
    weight_inputs: Collection[str] = frozenset()
    """The inputs that are whole weights, of recurrent layers."""

    @cached_property
    def exact(self) -> bool:
        """Whether the result is defined bit by bit: integers, element-wise arithmetic, and averages of codes.

        A constant that the exporter computed (the cosines of positions, say) may be off in the last bit.
        """
        producers = {name: node for node in self.nodes for name in node.output}

        def holds_codes(name: str) -> bool:  # or sums of them, which are whole numbers as well
            node = producers.get(name)
            if node is None:
                return name in self.code_inputs or name not in self.inputs
            return node.op_type in WHOLE and all(map(holds_codes, node.input))

        return all(
            node.op_type in EXACT
            or layer_of(node.name) in self.integer_layers
            or (node.op_type in AVERAGES and holds_codes(node.input[0]))
            for node in self.nodes
        ) and not any(name in self.exporter_constants for node in self.nodes for name in node.input)

    @cached_property
    def sums_over_positions(self) -> bool:
        """Whether it sums over positions, of which there may be more than float32 adds up exactly."""
        return any(node.op_type in AVERAGES or node.op_type in NORMALIZATIONS for node in self.nodes)

    @cached_property
    def unquantized(self) -> str | None:
        """The tensor that a quantizer at the end of the subgraph reads; None where it ends in no quantizer."""
        if self.kind != "quantizer":
            return None
        producers = {name: node for node in self.nodes for name in node.output}
        node = producers.get(self.value)
        while node is not None and node.op_type not in ("QuantizeLinear", "Div"):
            node = producers.get(node.input[0])
        return None if node is None else node.input[0]

    @property
    def rounds_numbers(self) -> bool:
        """Whether its codes are those of numbers that it computes, returned beside them or not.

        A hard-swish as a product of integers gives codes at once, and so do the operations of squeeze and excitation.
        """
        at_once = self.kind == "quantizer" and any(node.op_type in ON_CODES for node in self.nodes)
        return at_once or (self.unquantized is not None and self.unquantized not in self.inputs)


class SubgraphExtractor:
    """Finds the subgraphs of a model, and makes models of them."""

    def __init__(self, model: ModelProto, tensors: Sequence[MappedTensor], small: DeployedNetwork) -> None:
        self.model = model
        self._integer_layers = {part.name for part in small.integer.parts if part.arithmetic == "integer"}
        self._exporter_constants = exporter_constants(model, small)
        graph = model.graph
        self._producers = {name: node for node in graph.node for name in node.output}
        self._order = {name: position for position, node in enumerate(graph.node) for name in node.output}
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._types = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
        self._codes = {tensor.value for tensor in tensors if tensor.zero_point is not None}
        self._weights = {tensor.value for tensor in tensors if tensor.kind == "Matrix"}
        mapped = {tensor.value for tensor in tensors}
        for value in mapped:
            self._types[value] = TensorProto.UINT8 if value in self._codes else TensorProto.FLOAT
        self._given = {value.name: value for value in graph.input}
        self._boundary = {value.name for value in graph.input} | mapped
        self.subgraphs = [self._extract(tensor.of, KINDS[tensor.kind], tensor.value, tensor) for tensor in tensors]
        self.subgraphs += [
            self._extract(value.name, "output", value.name, None)
            for value in graph.output
            if value.name not in mapped and value.name in self._producers  # an output may also be a constant or input
        ]
        self.subgraphs.sort(key=lambda subgraph: self._order.get(subgraph.value, -1))

    def _extract(self, name: str, kind: str, value: str, tensor: MappedTensor | None) -> Subgraph:
        inputs: dict[str, None] = {}
        nodes: dict[str, NodeProto] = {}
        waiting = [value]
        while waiting:
            read = waiting.pop()
            if read != value and read in self._boundary:
                inputs[read] = None
            elif read and read not in self._constants and (node := self._producers[read]).output[0] not in nodes:
                nodes[node.output[0]] = node
                waiting.extend(node.input)
        ordered = tuple(nodes[output] for output in sorted(nodes, key=self._order.__getitem__))
        return Subgraph(
            name, kind, value, tensor, tuple(inputs), ordered, self._integer_layers, self._exporter_constants,
            self._codes & inputs.keys(), self._weights & inputs.keys(),
        )  # fmt: skip

    def to_model(self, subgraph: Subgraph, ranks: Mapping[str, int]) -> ModelProto:
        """A subgraph as a model; an inexact one also returns the tensor that is quantized at its end.

        Inputs of the network keep their dimensions: the runtime looks for the sizes that are computed from them. Others
        have as many axes as `ranks` says, which the runtime knows in the whole file, too. Without them it optimizes
        less, and the Pad_Fusion of onnxruntime 1.31 ends the process with a segmentation fault where a Pad reads such
        an input and a Cast and a convolution follow.
        """
        outputs = [subgraph.value]
        if subgraph.unquantized is not None and subgraph.unquantized not in subgraph.inputs and not subgraph.exact:
            outputs.append(subgraph.unquantized)
        constants = {name for node in subgraph.nodes for name in node.input if name in self._constants}
        graph = helper.make_graph(
            list(subgraph.nodes),
            subgraph.name,
            [
                self._given.get(name) or helper.make_tensor_value_info(name, self._types[name], [None] * ranks[name])
                for name in subgraph.inputs
            ],
            [_value_info(name, self._types.get(name, TensorProto.FLOAT)) for name in outputs],
            [self._constants[name] for name in sorted(constants)],
        )
        model = helper.make_model(graph, opset_imports=self.model.opset_import)
        model.ir_version = self.model.ir_version
        return model

    def with_inner_outputs(self) -> ModelProto:
        """The whole model, with the tensors of all subgraphs among its outputs."""
        model = ModelProto()
        model.CopyFrom(self.model)
        present = {value.name for value in model.graph.output}
        inner = [subgraph.value for subgraph in self.subgraphs if subgraph.value not in present]
        model.graph.output.extend(_value_info(name, self._types[name]) for name in dict.fromkeys(inner))
        return model


def exporter_constants(model: ModelProto, small: DeployedNetwork) -> set[str]:
    """Float constants of a model that the deployed network does not hold: the exporter computed them."""
    owners = [part.name for part in small.integer.parts] + [grid.name for grid in small.integer.structure.grids]
    arrays = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if tensor.data_type == TensorProto.FLOAT and not any(tensor.name.startswith(f"{owner}.") for owner in owners)
    }
    arrays = {name: array for name, array in arrays.items() if array.size > 1}
    sizes = {array.size for array in arrays.values()}  # of the few tensors that are sorted
    tensors = [tensor for tensor in (*small.program.parameters(), *small.program.buffers()) if tensor.numel() in sizes]
    held = {_sorted_bytes(tensor.detach().numpy()) for tensor in tensors}
    return {name for name, array in arrays.items() if _sorted_bytes(array) not in held}


def _sorted_bytes(array: NDArray[Any]) -> bytes:
    """Equal for equal values in any order: the exporter transposes some constants."""
    return np.sort(array, axis=None).tobytes()


def _value_info(name: str, element_type: int) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, element_type, None)
