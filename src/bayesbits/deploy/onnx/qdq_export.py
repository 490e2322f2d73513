"""Form "qdq", step 1: torch translates the deployed network with numbers in place of codes.

The other forms hand codes from layer to layer, for which onnxruntime has kernels. A portable file holds numbers between
its operations, each rounded to its grid by QuantizeLinear and read back by DequantizeLinear at once, and every runtime
decides itself which operations it computes with the integers in between. All that the deployed network does to codes
(moving them, maxima, averages, padding with zeros) it does to numbers just as well: a code is a number divided by its
step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from bayesbits.deploy.modules import DEQUANTIZERS, LAYERS, QUANTIZERS
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.onnx.custom_nodes import custom_node, export_with_custom_nodes, output_shape
from bayesbits.records.integer_network import IntegerNetwork
from bayesbits.utils.naming import name_of

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET, IR_VERSION = 18, 8
"""Versions that runtimes other than the newest read as well."""


class NumberInterpreter(fx.Interpreter):
    """Runs a deployed program with a custom node in place of every layer and quantizer; all of them return numbers."""

    def __init__(self, program: fx.GraphModule, network: IntegerNetwork) -> None:
        super().__init__(program)
        self.network = network

    def run_node(self, n: fx.Node) -> Any:
        if n.op != "call_module":
            return super().run_node(n)
        kind, _, key = str(n.target).partition(".")
        (source,) = n.all_input_nodes
        name, x = name_of(key), self.env[source]
        assert isinstance(x, Tensor)
        if kind == LAYERS:
            shape = output_shape(self.network.layer(name), x)
            return custom_node(n, "Layer", name, x, torch.float32, shape)
        if kind == QUANTIZERS:
            return custom_node(n, "Quantize", name, x, torch.float32, x.shape)
        assert kind == DEQUANTIZERS, f"form 'qdq' cannot write the module {n.target}"
        return x


def to_qdq_onnx(small: DeployedNetwork, inputs: tuple[Tensor, ...]) -> ModelProto:
    """The ONNX model of a deployed network in the portable form; `inputs` are those of its program."""
    from bayesbits.deploy.onnx.qdq_nodes import replace_custom_nodes

    model = export_with_custom_nodes(small.program, small.integer, inputs, OPSET, NumberInterpreter)
    model.ir_version = IR_VERSION
    replace_custom_nodes(model, small.integer)
    return model
