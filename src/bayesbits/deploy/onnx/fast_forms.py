"""Float operations in the form that onnxruntime runs fastest: activation functions, and means over several axes.

The runtime gives every reader of DequantizeLinear a copy of it, so that a function which reads its input twice costs
two dequantizations, and is not recognized by the fusions that come later.

- x * sigmoid(x), which is SiLU, becomes QuickGelu, the operation of the runtime's own domain for it.
- clip(x + 3, 0, 6) / 6, a hard sigmoid written as a formula, becomes HardSigmoid, and the product of either with x
  HardSwish.
  The runtime expands HardSwish again, but only after it has copied DequantizeLinear, which is then not needed.
- A mean over several axes becomes a sum over one axis after the other, divided once. The runtime keeps the tensors
  between integer convolutions with their channels last, where its mean over height and width is eight times as slow. In
  front of a linear layer the mean stays.
- There it also multiplies position by position where a tensor has one number for each channel, as in squeeze and
  excitation. With few channels a row of such numbers, made once, is up to three times as fast.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from bayesbits.deploy.onnx.custom_nodes import DOMAIN
from bayesbits.deploy.onnx.symbolic_dims import example_size
from bayesbits.deploy.onnx.tensor_names import RUNTIME_DOMAIN
from bayesbits.graph.hard_swish import HEIGHT, SHIFT

Array = NDArray[Any]

RESHAPES = frozenset(("Flatten", "Reshape", "Squeeze"))
FEW_CHANNELS, MANY_POSITIONS = 144, 784
"""Where a product with one number for each channel is slow."""


def write_fast_forms(
    model: ModelProto, symbols: Mapping[str, int] | None = None, unchanged: Collection[str] = ()
) -> None:
    """Write these operations in their form that is fastest for the example inputs, in place.

    `symbols` are the values for them of the symbols in sizes that may change. The operations that compute the tensors
    in `unchanged` stay as they are.
    """
    graph = _Graph(model.graph, symbols or {})
    for node in [node for node in model.graph.node if node.output[0] not in unchanged]:
        if node.op_type == "Sigmoid" and graph.is_dequantized(node.input[0]):
            graph.write_silu(node)
        elif node.op_type == "Clip":
            graph.write_hard_sigmoid(node)
        elif node.op_type == "HardSigmoid":
            graph.write_hard_swish(node)
        elif node.op_type == "Mul":
            graph.write_gate(node)
        elif node.op_type in ("AveragePool", "GlobalAveragePool", "ReduceMean"):
            graph.write_mean(node)
    kept = [node for node in model.graph.node if node.output[0] not in graph.gone]
    order = [new for node in kept for new in graph.replaced.get(node.output[0], [node])]
    del model.graph.node[:]
    model.graph.node.extend(order)
    model.graph.initializer.extend(graph.added.values())
    if any(node.domain == RUNTIME_DOMAIN for node in model.graph.node):
        model.opset_import.append(helper.make_opsetid(RUNTIME_DOMAIN, 1))


class _Graph:
    def __init__(self, graph: GraphProto, symbols: Mapping[str, int]) -> None:
        self.symbols = symbols
        self.readers = readers_of(graph)
        self.producers = {name: node for node in graph.node for name in node.output}
        self.outputs = {value.name for value in graph.output}
        self.arrays = dict(constants_of(graph))
        self.constants = {name: float(array.reshape(())) for name, array in self.arrays.items() if array.size == 1}
        self.sizes = sizes_of(graph)
        self.added: dict[str, TensorProto] = {}
        """New constants, by name."""
        self.replaced: dict[str, list[NodeProto]] = {}
        """New nodes, by the output that the last of them computes."""
        self.gone: set[str] = set()
        """Outputs of nodes that nothing reads any more."""

    def is_dequantized(self, name: str) -> bool:
        """Whether a tensor is the result of a dequantizer."""
        producer = self.producers.get(name)
        return producer is not None and producer.domain == DOMAIN and producer.op_type == "Dequantize"

    def only_reader(self, node: NodeProto) -> NodeProto | None:
        """The one reader of a node's result; None where there are several, or where the network returns it."""
        readers = self.readers.get(node.output[0], [])
        return readers[0] if len(readers) == 1 and node.output[0] not in self.outputs else None

    def write_silu(self, sigmoid: NodeProto) -> None:
        """x * sigmoid(x) -> QuickGelu(x)."""
        x, product = sigmoid.input[0], self.only_reader(sigmoid)
        if product is not None and product.op_type == "Mul" and set(product.input) == {x, sigmoid.output[0]}:
            self._replace(product, "QuickGelu", [x], [sigmoid], domain=RUNTIME_DOMAIN, alpha=1.0)

    def write_hard_sigmoid(self, clip: NodeProto) -> None:
        """clip(x + 3, 0, 6) / 6 -> HardSigmoid(x), and x * clip(x + 3, 0, 6) / 6 -> HardSwish(x).

        The product with another tensor z, z * clip(x + 3, 0, 6) / 6, becomes z * HardSigmoid(x).
        """
        bounds = [self.constants.get(name) for name in clip.input[1:]]
        shifted = self.producers.get(clip.input[0])
        after = self.only_reader(clip)
        if bounds != [0.0, HEIGHT] or shifted is None or shifted.op_type != "Add" or after is None:
            return
        if self.only_reader(shifted) is None or SHIFT not in map(self.constants.get, shifted.input):
            return
        x = next(name for name in shifted.input if self.constants.get(name) != SHIFT)
        last = self.only_reader(after)
        if self._divides(after):
            if last is not None and last.op_type == "Mul" and set(last.input) == {x, after.output[0]}:
                self._replace(last, "HardSwish", [x], [shifted, clip, after])
            else:
                self._replace(after, "HardSigmoid", [x], [shifted, clip], alpha=1 / HEIGHT, beta=0.5)
        elif after.op_type == "Mul" and last is not None and self._divides(last):
            if set(after.input) == {x, clip.output[0]}:
                self._replace(last, "HardSwish", [x], [shifted, clip, after])
            else:
                self._replace(clip, "HardSigmoid", [x], [shifted], alpha=1 / HEIGHT, beta=0.5)
                self._replace(last, "Mul", after.input, [after])

    def write_hard_swish(self, gate: NodeProto) -> None:
        """x * HardSigmoid(x) -> HardSwish(x), where the hard sigmoid has the numbers of torch's."""
        slope, height = (next((one.f for one in gate.attribute if one.name == name), 0.0) for name in ("alpha", "beta"))
        x, product = gate.input[0], self.only_reader(gate)
        if product is None or product.op_type != "Mul" or set(product.input) != {x, gate.output[0]}:
            return
        if math.isclose(slope, 1 / HEIGHT, rel_tol=1e-6) and height == SHIFT / HEIGHT:
            self._replace(product, "HardSwish", [x], [gate])

    def write_gate(self, product: NodeProto) -> None:
        """An image times a number for each of few channels -> the image times a row of such numbers."""
        shapes = [[example_size(size, self.symbols) or 0 for size in self.sizes.get(n, ())] for n in product.input]
        for (image, gate), (x, factors) in ((shapes, product.input), (shapes[::-1], product.input[::-1])):
            if len(image) != 4 or len(gate) != 4 or gate[2:] != [1, 1] or not 1 < gate[1] == image[1] <= FEW_CHANNELS:
                continue
            if image[2] * image[3] < MANY_POSITIONS or factors in self.arrays or product.output[0] in self.replaced:
                continue
            row = f"{product.output[0]}/row"
            self.replaced[product.output[0]] = [
                *self._row(x, factors, row, image[3]),
                helper.make_node("Mul", [x, row], list(product.output), name=product.name),
            ]
            return

    def _row(self, x: str, factors: str, row: str, width: int) -> list[NodeProto]:
        """Every factor repeated over the width of the image x, which is computed where it may change."""
        if self.sizes[x][3].HasField("dim_value"):
            ones = self._add(f"ones {width}", np.ones((1, 1, 1, width), np.float32))
            return [helper.make_node("Mul", [factors, ones], [row], name=row)]
        before = self._add("three ones", np.ones(3, np.int64))
        return [
            helper.make_node("Shape", [x], [f"{row}/width"], name=f"{row}/width", start=3),
            helper.make_node("Concat", [before, f"{row}/width"], [f"{row}/sizes"], name=f"{row}/sizes", axis=0),
            helper.make_node("Expand", [factors, f"{row}/sizes"], [row], name=row),
        ]

    def write_mean(self, mean: NodeProto) -> None:
        """A mean over several axes -> ReduceSum over each of them, the last axis first, and one Div."""
        x, sizes = mean.input[0], self.sizes.get(mean.input[0], ())
        if not sizes:
            return
        axes, keeps = averaged_axes(mean, self.sizes, self.arrays)
        if len(axes) < 2:
            return
        if not self._between_convolutions(mean, keeps):
            if mean.op_type == "AveragePool":
                self._replace(mean, "GlobalAveragePool", [x], [])
            return
        nodes, number = self._count(mean, [sizes[axis] for axis in axes], min(axes), max(axes))
        if not number:
            return
        for axis in sorted(axes, reverse=True):
            total = f"{mean.output[0]}/sum{axis}"
            axis_name = self._add(f"axis {axis}", np.array([axis], dtype=np.int64))
            nodes.append(helper.make_node("ReduceSum", [x, axis_name], [total], name=total, keepdims=int(keeps)))
            x = total
        nodes.append(helper.make_node("Div", [x, number], list(mean.output), name=mean.name))
        self.replaced[mean.output[0]] = nodes

    def _count(self, mean: NodeProto, sizes: list[Any], first: int, last: int) -> tuple[list[NodeProto], str]:
        """The number of values that a mean is taken over: a constant, or computed where their sizes may change."""
        if all(size.HasField("dim_value") for size in sizes):
            count = math.prod(size.dim_value for size in sizes)
            return [], self._add(f"number {count}", np.float32(count))
        if last - first + 1 != len(sizes):
            return [], ""
        base = f"{mean.output[0]}/count"
        nodes = [
            helper.make_node("Shape", mean.input[:1], [f"{base}/n"], name=f"{base}/n", start=first, end=last + 1),
            helper.make_node("Cast", [f"{base}/n"], [f"{base}/float"], name=f"{base}/float", to=TensorProto.FLOAT),
            helper.make_node("ReduceProd", [f"{base}/float"], [base], name=base, keepdims=0),
        ]
        return nodes, base

    def _between_convolutions(self, mean: NodeProto, keeps: bool) -> bool:
        """Whether the runtime keeps the channels of an averaged image last.

        It does so where the image has other readers, or where a convolution reads the mean. In front of a linear layer
        the channels come first, where a mean over height and width is quick, and sums are not.
        """
        source = self.producers.get(mean.input[0])
        converted = source is not None and source.op_type in ("Dequantize", "ToFloat")
        images = [mean.input[0], source.input[0]] if source is not None and converted else [mean.input[0]]
        if any(len(self.readers.get(image, [])) > 1 for image in images):
            return True
        waiting = list(mean.output) if keeps else []
        while waiting:
            for reader in self.readers.get(waiting.pop(), []):
                if reader.op_type == "Layer":
                    return True
                if reader.op_type not in RESHAPES:
                    waiting += reader.output
        return False

    def _add(self, name: str, value: Array | np.generic) -> str:
        self.added[name] = numpy_helper.from_array(np.asarray(value), name)
        return name

    def _divides(self, node: NodeProto) -> bool:
        """Whether a node divides by the height of the hard sigmoid."""
        return node.op_type == "Div" and self.constants.get(node.input[1]) == HEIGHT

    def _replace(
        self, node: NodeProto, operation: str, inputs: Iterable[str], unread: Iterable[NodeProto], **attributes: Any
    ) -> None:
        new = helper.make_node(operation, list(inputs), list(node.output), name=node.name, **attributes)
        self.replaced[node.output[0]] = [new]
        self.gone.update(chain.from_iterable(gone.output for gone in unread))


def readers_of(graph: GraphProto) -> dict[str, list[NodeProto]]:
    """The nodes that read each tensor of a graph, by its name."""
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    return readers


def sizes_of(graph: GraphProto) -> dict[str, Any]:
    """The sizes of the tensors of a graph, by name."""
    values = (*graph.input, *graph.value_info, *graph.output)
    return {value.name: value.type.tensor_type.shape.dim for value in values}


def averaged_axes(mean: NodeProto, sizes: Mapping[str, Any], arrays: Mapping[str, Array]) -> tuple[list[int], bool]:
    """The axes that a mean is taken over, and whether they stay as axes of size 1."""
    image = sizes.get(mean.input[0], ())
    if mean.op_type == "GlobalAveragePool" or _averages_whole_image(mean, image):
        return list(range(2, len(image))), True
    if mean.op_type != "ReduceMean":
        return [], True
    keeps = next((attribute.i for attribute in mean.attribute if attribute.name == "keepdims"), 1)
    given = arrays.get(mean.input[1]) if len(mean.input) > 1 else None
    return ([] if given is None else [int(axis) % len(image) for axis in given.reshape(-1)]), bool(keeps)


def _averages_whole_image(pool: NodeProto, image: Sequence[Any]) -> bool:
    """Whether an average pooling has a single window, without padding, that holds the whole image."""
    if pool.op_type != "AveragePool":
        return False
    attributes = {attribute.name: attribute for attribute in pool.attribute}
    sizes = [size.dim_value for size in list(image)[2:]]
    window, pads = (list(attributes[name].ints) if name in attributes else [] for name in ("kernel_shape", "pads"))
    dilated = "dilations" in attributes and any(number != 1 for number in attributes["dilations"].ints)
    return (
        len(window) == len(sizes)
        and all(0 < size <= width for size, width in zip(sizes, window, strict=True))
        and not any(pads)
        and not dilated
    )


def constants_of(graph: GraphProto) -> Iterator[tuple[str, Array]]:
    """The constants of a graph, by name."""
    for tensor in graph.initializer:
        yield tensor.name, numpy_helper.to_array(tensor)
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            yield node.output[0], numpy_helper.to_array(node.attribute[0].t)
