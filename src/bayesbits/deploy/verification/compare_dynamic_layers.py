"""The integers of layers that quantize their input at run time: equal bit by bit, before the runtime fuses anything.

The runtime fuses the nodes of such a layer into one kernel, which returns numbers alone. So the nodes up to the integer
sum are taken out of the file and run without optimizations, on the deployed network's own input. Codes, step, zero
point and sums have to be equal to those of the deployed layer; codes, step and zero point also to those that are
derived a second time (see `dynamic_inputs`). The numbers of the fused kernel are compared like those of every other
layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper
from torch import Tensor

from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.onnx.runtime import NAME, Session, layer_of
from bayesbits.deploy.onnx.tensor_names import read_tensor_map
from bayesbits.deploy.verification.differences import ArrayComparison
from bayesbits.deploy.verification.dynamic_inputs import quantize_dynamically
from bayesbits.deploy.verification.result import INTEGERS, Predictions, RuntimeTensor, VerificationError

Array = NDArray[Any]

_IN_RUNTIME = ArrayComparison(f"in {NAME}, fed the same values,", "in the deployed network")
_DERIVED = ArrayComparison("in the deployed network", "by the definition of DynamicQuantizeLinear")


class DynamicLayerComparison:
    """Runs the integer part of every such layer, and compares it with the deployed network, batch by batch."""

    def __init__(self, small: DeployedNetwork, model: ModelProto) -> None:
        self.small = small
        program = {node.name: node for node in small.program.graph.nodes}
        self._calls: list[tuple[str, str, Any, Session]] = []
        """For every call its layer's name, the node of its input, its module, and the session of its integer part."""
        layers = {layer.name for layer in small.integer.layers if layer.dynamic and layer.arithmetic == "integer"}
        calls: Counter[str] = Counter()
        products = list(_products(model))
        for tensor in read_tensor_map(model):
            if tensor.kind == "Layer" and tensor.of in layers and tensor.node in program:
                own = [node for node in products if layer_of(node.name) == tensor.of]
                if calls[tensor.of] >= len(own):
                    raise VerificationError(f"{tensor.of}: the ONNX file does not quantize its input at run time")
                node = program[tensor.node]
                module = small.program.get_submodule(str(node.target))
                session = Session(_integer_part(model, own[calls[tensor.of]]), threads=1, optimizing=False)
                self._calls.append((tensor.of, node.all_input_nodes[0].name, module, session))
                calls[tensor.of] += 1
        self.nodes = {source for _, source, _, _ in self._calls}
        """The nodes of the deployed program whose values are read."""
        self._values: Counter[str] = Counter()

    def compare(self, values: Mapping[str, Tensor]) -> None:
        """Compare one batch with values of the deployed program; raises at the first layer that differs."""
        for layer, source, module, session in self._calls:
            x = values[source]
            with torch.no_grad():
                codes, step, zero_point = module.quantized(x)
                sums = module.sums(codes)
            derived = quantize_dynamically(layer, x)
            _DERIVED.check_equal(layer, "step of the input", step.numpy().reshape(1), _one(derived.grid.step))
            _DERIVED.check_equal(layer, "zero point", zero_point.numpy().reshape(1), _one(-derived.grid.low))
            _DERIVED.check_equal(layer, "code of the input", codes.numpy(), derived.codes)
            given = session.run({session.inputs[0]: x.numpy()})
            found = [given[name] for name in session.outputs]
            expected = [codes + zero_point, step, zero_point, sums]
            for what, ours, theirs in zip(("code of the input", "step of the input", "zero point", "integer sum"),
                                          found, expected, strict=True):  # fmt: skip
                _IN_RUNTIME.check_equal(layer, what, ours.astype(np.float64), theirs.double().numpy())
                self._values[layer] += ours.size

    def result(self) -> Iterator[RuntimeTensor]:
        """How many integers of every layer are equal: all, as any other is an error."""
        for layer, count in self._values.items():
            yield RuntimeTensor(layer, INTEGERS, True, count, 0, 0.0, 0, 0.0, Predictions())


def _products(model: ModelProto) -> Iterator[NodeProto]:
    """The integer products of tensors that are quantized at run time."""
    quantized = {node.output[0] for node in model.graph.node if node.op_type == "DynamicQuantizeLinear"}
    for node in model.graph.node:
        if node.op_type == "MatMulInteger" and node.input[0] in quantized:
            yield node


def _integer_part(model: ModelProto, product: NodeProto) -> ModelProto:
    """A model from the numbers that a layer reads to its integer sum, which returns what lies between as well."""
    producers = {name: node for node in model.graph.node for name in node.output}
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    quantizer = producers[product.input[0]]
    nodes, waiting = [product], [product.input[1]]
    while waiting:  # the weight, which may be stored in a narrow type, and is transposed
        node = producers.get(waiting.pop())
        if node is not None:
            nodes.append(node)
            waiting += node.input
    ordered = [quantizer, *reversed(nodes)]
    types = (TensorProto.UINT8, TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT32)
    outputs = zip((*quantizer.output, product.output[0]), types, strict=True)
    read = {name for node in ordered for name in node.input}
    graph = helper.make_graph(
        ordered,
        "integers",
        [helper.make_tensor_value_info(quantizer.input[0], TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info(name, element, None) for name, element in outputs],
        [constants[name] for name in sorted(read & constants.keys())],
    )
    part = helper.make_model(graph, opset_imports=model.opset_import)
    part.ir_version = model.ir_version
    return part


def _one(value: float) -> Array:
    return np.array([value], np.float32)
