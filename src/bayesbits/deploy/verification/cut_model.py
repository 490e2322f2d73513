"""A file of the form "qdq", cut at its layers, products, tables and quantizers: a model in which each of them reads
given values.

Every tensor that one of them computes becomes an output. What reads it reads an input of the new model
instead, through the same QuantizeLinear and DequantizeLinear where the tensor is quantized, so that a runtime still
computes in integers. Fed the deployed network's values, every tensor is judged by what computes it, and not by
differences in front of it. All pieces are in one model, which is compiled once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import ModelProto, NodeProto, TensorProto, helper

from bayesbits.deploy.onnx.tensor_names import MappedTensor


def given(value: str) -> str:
    """The name of the input that stands for a tensor in the cut model."""
    return f"{value}/given"


def cut_model(model: ModelProto, tensors: Sequence[MappedTensor], ranks: Mapping[str, int]) -> ModelProto:
    """The model in pieces; `ranks` has the number of axes of every tensor of the map."""
    cut = ModelProto()
    cut.CopyFrom(model)
    graph = cut.graph
    producers = {name: node for node in model.graph.node for name in node.output}
    read = {name for node in model.graph.node for name in node.input}
    names: dict[str, str] = {}  # what is read in place of every tensor
    added: list[NodeProto] = []
    for tensor in dict.fromkeys(tensor.value for tensor in tensors):
        if tensor not in read:
            continue
        names[tensor] = given(tensor)
        graph.input.append(helper.make_tensor_value_info(given(tensor), TensorProto.FLOAT, [None] * ranks[tensor]))
        dequantizer = producers[tensor]
        if dequantizer.op_type == "DequantizeLinear":
            quantizer = producers[dequantizer.input[0]]
            names[tensor] = f"{given(tensor)}/numbers"
            codes = f"{given(tensor)}/codes"
            added.append(_copy(quantizer, [given(tensor), *quantizer.input[1:]], codes))
            added.append(_copy(dequantizer, [codes, *dequantizer.input[1:]], names[tensor]))
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    nodes = [*added, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    present = {value.name for value in graph.output}
    inner = dict.fromkeys(tensor.value for tensor in tensors if tensor.value not in present)
    graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in inner)
    return cut


def _copy(node: NodeProto, inputs: Sequence[str], output: str) -> NodeProto:
    copied = NodeProto()
    copied.CopyFrom(node)
    copied.name = f"node/{output}"
    copied.input[:], copied.output[:] = inputs, [output]
    return copied
