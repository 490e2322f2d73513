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

from bayesbits.deploy.modules import LAYERS, PRODUCTS, QUANTIZERS, TABLES
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.onnx.custom_nodes import (
    custom_node,
    export_with_custom_nodes,
    output_shape,
    product_shape,
    table_node,
)
from bayesbits.records.integer_network import IntegerNetwork
from bayesbits.utils.naming import name_of

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET, IR_VERSION = 18, 8
"""Versions that runtimes other than the newest read as well."""


class NumberInterpreter(fx.Interpreter):
    """Runs a deployed program with custom nodes in place of its layers, products, tables and quantizers; all of them
    return numbers."""

    def __init__(self, program: fx.GraphModule, network: IntegerNetwork) -> None:
        super().__init__(program)
        self.network = network

    def run_node(self, n: fx.Node) -> Any:
        if n.op != "call_module":
            return super().run_node(n)
        kind, _, key = str(n.target).partition(".")
        name, args = name_of(key), self.fetch_args_kwargs_from_env(n)[0]
        if kind == TABLES:
            return table_node(n, self.network.table(name), args)
        x, *others = args
        assert isinstance(x, Tensor)
        if kind == PRODUCTS:
            return custom_node(n, "Product", name, (x, *others), torch.float32, product_shape(x, *others))
        if kind == LAYERS:
            shape = output_shape(self.network.layer(name), x)
            return custom_node(n, "Layer", name, x, torch.float32, shape)
        if kind == QUANTIZERS:
            return custom_node(n, "Quantize", name, x, torch.float32, x.shape)
        return x  # of a dequantizer


def qdq_refusal(network: IntegerNetwork) -> str | None:
    """Why a network cannot be written in the portable form, with the way out; None where it can."""
    for layer in network.layers:
        reason = None
        if layer.dynamic:
            reason = "quantizes its input at run time"
        elif layer.group_size is not None:
            reason = f"has weights in groups of {layer.group_size} inputs"
        if reason is not None:
            return (
                f'form "qdq" cannot write {layer.name or "the layer"}, which {reason}: export with form="fast" or '
                '"compact", for onnxruntime, or attach with activations="static"'
            )
    return None


def to_qdq_onnx(small: DeployedNetwork, inputs: tuple[Tensor, ...]) -> ModelProto:
    """The ONNX model of a deployed network in the portable form; `inputs` are those of its program."""
    from bayesbits.deploy.onnx.qdq_nodes import replace_custom_nodes

    model = export_with_custom_nodes(small.program, small.integer, inputs, OPSET, NumberInterpreter)
    model.ir_version = IR_VERSION
    replace_custom_nodes(model, small.integer)
    return model
