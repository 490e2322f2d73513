"""An ONNX graph cut into pieces, each from the places in front of it to one place.

Fed the deployed network's own values, a piece is judged by what it does itself and not by what happened before it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from bayesbits.deploy.onnx.tensor_names import Checkpoint
from bayesbits.deploy.verification.runtime import layer_of

# fmt: off
MOVES = frozenset((
    "Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Pad", "ReduceMax", "Reshape", "Shape",
    "Slice", "Split", "Squeeze", "Sub", "Transpose", "Unsqueeze",
))
# Element-wise operations of IEEE arithmetic, which leave no choice, beside those that move values.
EXACT = MOVES | frozenset((
    "Add", "Clip", "Div", "DequantizeLinear", "Max", "Min", "Mul", "Neg", "QuantizeLinear", "Relu", "Round", "Sum",
))
# fmt: on
OVER_POSITIONS = frozenset({"GroupNormalization", "InstanceNormalization", "LayerNormalization"})
AVERAGES = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum"})


@dataclass(frozen=True)
class Segment:
    """The nodes between the places in front and one place."""

    name: str
    kind: str
    value: str
    """The tensor of the place."""
    checkpoint: Checkpoint | None
    """None where the place is an output of the network and no layer's."""
    sources: tuple[str, ...]
    """The tensors that it reads: places, or inputs of the network."""
    nodes: tuple[NodeProto, ...]
    integer_layers: Collection[str]
    folded: Collection[str]
    """Constants that the exporter computed."""
    carried: Collection[str]
    """The sources that are codes."""

    @cached_property
    def exact(self) -> bool:
        """Whether there is only one right answer: integers, element-wise arithmetic, and averages of codes.

        A constant that the exporter computed (the cosines of positions, say) may be off in the last place.
        """
        made = {name: node for node in self.nodes for name in node.output}

        def of_codes(name: str) -> bool:
            node = made.get(name)
            if node is None:
                return name in self.carried or name not in self.sources
            return node.op_type in MOVES and all(map(of_codes, node.input))

        return all(
            node.op_type in EXACT
            or layer_of(node.name) in self.integer_layers
            or (node.op_type in AVERAGES and of_codes(node.input[0]))
            for node in self.nodes
        ) and not any(name in self.folded for node in self.nodes for name in node.input)

    @cached_property
    def averages(self) -> bool:
        """Whether it averages over positions, of which there may be many: codes are then not added up exactly."""
        return any(node.op_type in AVERAGES or node.op_type in OVER_POSITIONS for node in self.nodes)

    @cached_property
    def quantized(self) -> str | None:
        """The numbers that are quantized at the end of this piece, where it ends so and not in a layer."""
        if self.kind != "quantizer":
            return None
        made = {name: node for node in self.nodes for name in node.output}
        node = made.get(self.value)
        while node is not None and node.op_type not in ("QuantizeLinear", "Div"):
            node = made.get(node.input[0])
        return None if node is None else node.input[0]


class Cutter:
    """Cuts pieces out of a model."""

    def __init__(
        self,
        model: ModelProto,
        checkpoints: Sequence[Checkpoint],
        integer_layers: Collection[str],
        folded: Collection[str],
    ) -> None:
        self.model = model
        self._integer_layers, self._folded = integer_layers, folded
        graph = model.graph
        self._makers = {name: node for node in graph.node for name in node.output}
        self._order = {name: position for position, node in enumerate(graph.node) for name in node.output}
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._types = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
        places = {checkpoint.value: checkpoint for checkpoint in checkpoints}
        self._carried = {checkpoint.value for checkpoint in checkpoints if checkpoint.zero_point is not None}
        for value in places:
            self._types[value] = TensorProto.UINT8 if value in self._carried else TensorProto.FLOAT
        self._ends = {value.name for value in graph.input} | set(places)
        self.segments = [
            self._cut(c.of, "layer" if c.kind == "Layer" else "quantizer", c.value, c) for c in checkpoints
        ]
        self.segments += [
            self._cut(value.name, "output", value.name, None)
            for value in graph.output
            if value.name not in places and value.name in self._makers  # and is no constant, and no input
        ]
        self.segments.sort(key=lambda segment: self._order.get(segment.value, -1))

    def _cut(self, name: str, kind: str, value: str, checkpoint: Checkpoint | None) -> Segment:
        sources: dict[str, None] = {}
        nodes: dict[str, NodeProto] = {}
        waiting = [value]
        while waiting:
            tensor = waiting.pop()
            if tensor != value and tensor in self._ends:
                sources[tensor] = None
            elif tensor and tensor not in self._constants and (node := self._makers[tensor]).output[0] not in nodes:
                nodes[node.output[0]] = node
                waiting.extend(node.input)
        ordered = sorted(nodes, key=self._order.__getitem__)
        kept = tuple(nodes[tensor] for tensor in ordered)
        return Segment(
            name, kind, value, checkpoint, tuple(sources), kept, self._integer_layers, self._folded,
            self._carried & sources.keys(),
        )  # fmt: skip

    def piece(self, segment: Segment) -> ModelProto:
        """A segment as a model of its own."""
        wanted = [segment.value]
        if segment.quantized is not None and segment.quantized not in segment.sources and not segment.exact:
            wanted.append(segment.quantized)
        constants = {name for node in segment.nodes for name in node.input if name in self._constants}
        graph = helper.make_graph(
            list(segment.nodes),
            segment.name,
            [_value(name, self._types[name]) for name in segment.sources],
            [_value(name, self._types.get(name, TensorProto.FLOAT)) for name in wanted],
            [self._constants[name] for name in sorted(constants)],
        )
        return self._model(graph)

    def exposed(self) -> ModelProto:
        """The whole model with every place as an output."""
        model = ModelProto()
        model.CopyFrom(self.model)
        present = {value.name for value in model.graph.output}
        places = [segment.value for segment in self.segments if segment.value not in present]
        model.graph.output.extend(_value(name, self._types[name]) for name in dict.fromkeys(places))
        return model

    def _model(self, graph: GraphProto) -> ModelProto:
        model = helper.make_model(graph, opset_imports=self.model.opset_import)
        model.ir_version = self.model.ir_version
        return model


def _value(name: str, element_type: int) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, element_type, None)
