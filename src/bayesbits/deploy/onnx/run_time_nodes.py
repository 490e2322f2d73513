"""The standard nodes of layers whose input is quantized at run time.

A tensor is quantized once, by DynamicQuantizeLinear, for all layers that read it. A layer is MatMulInteger, a Cast, a
Mul by the product of both steps and an Add of the bias, which the runtime makes one kernel of: DynamicQuantizeMatMul
where the layer is the only reader, and MatMulIntegerToFloat otherwise. A range for each output channel keeps that
fusion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import TensorProto, helper

from bayesbits.deploy.onnx.tensor_names import auxiliary_node
from bayesbits.records.integer_network import IntegerLayer

if TYPE_CHECKING:
    from bayesbits.deploy.onnx.node_writer import NodeWriter


class RunTimeNodes:
    """Adds such nodes to those that a writer collects."""

    def __init__(self, writer: NodeWriter) -> None:
        self.writer = writer
        self._quantized: dict[str, list[str]] = {}
        self._rounded: dict[str, str] = {}

    def layer(self, layer: IntegerLayer, x: str, weight: str, output: str, name: str) -> None:
        """A linear layer in integers: their sum as float, scaled and biased."""
        writer, tensors = self.writer, self.writer.network.tensors
        codes, step, zero_point = self.quantized(x)
        turned = writer.add("Transpose", [weight], f"{name}/turned", perm=[1, 0])
        total = writer.add("MatMulInteger", [codes, turned, zero_point], f"{name}/sum", name=name)
        number = writer.add("Cast", [total], f"{name}/number", to=TensorProto.FLOAT)
        steps = tensors[f"{layer.name}.steps"].numpy()
        steps_name = writer.constant(f"{layer.name}.weight.step", steps.reshape(()) if steps.size == 1 else steps)
        scale = writer.add("Mul", [step, steps_name], f"{name}/scale")
        last = f"{name}/product" if layer.bias else output
        writer.add("Mul", [number, scale], last)
        if layer.bias:
            bias = writer.constant(f"{layer.name}.bias", tensors[f"{layer.name}.bias"].numpy())
            writer.add("Add", [last, bias], output)

    def quantized(self, x: str) -> list[str]:
        """Codes, step and zero point of a tensor by its own range."""
        if x not in self._quantized:
            names = [f"{x}/dynamic/{part}" for part in ("codes", "step", "zero_point")]
            node = helper.make_node("DynamicQuantizeLinear", [x], names, name=auxiliary_node(names[0]))
            self.writer.nodes.append(node)
            self._quantized[x] = names
        return self._quantized[x]

    def rounded(self, x: str) -> str:
        """A tensor on the grid of its own range, as numbers."""
        if x not in self._rounded:
            self._rounded[x] = self.writer.add("DequantizeLinear", self.quantized(x), f"{x}/dynamic/numbers")
        return self._rounded[x]
