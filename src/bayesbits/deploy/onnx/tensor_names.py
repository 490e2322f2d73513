"""Names in an ONNX file: of nodes, of inputs and outputs, and the map of tensors to nodes of the deployed program.

The map is stored in the metadata of the file. `verify` reads it to compare the file with the deployed network tensor by
tensor.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from onnx import GraphProto, ModelProto, helper

KEY, FORM = "bayesbits", "bayesbits.form"
RUNTIME_DOMAIN = "com.microsoft"
"""The domain of the operations that onnxruntime alone has."""


@dataclass(frozen=True)
class MappedTensor:
    """One tensor that both the deployed program and the file compute."""

    node: str
    """The node of the deployed program that computes it."""
    kind: str
    """The kind of module that this node calls: "Layer", "Product", "Table", "Matrix" (a weight of a recurrent layer) or
    "Quantize"; "Input" where it computes the numbers that a layer quantizes at run time."""
    of: str
    """The name of the layer, product, table or grid; for an input that of the layer, with ".input"."""
    value: str
    """The tensor's name in the file."""
    zero_point: int | None
    """The zero point of uint8 codes; None where the tensor has float values."""
    more_channels: int = 0
    """How many channels of zeros the file has behind those of the deployed network."""


def auxiliary_node(name: str) -> str:
    """The name of a node that computes no layer; a node that computes a layer has the layer's name."""
    return f"node/{name}"


def write_tensor_map(model: ModelProto, tensors: Sequence[MappedTensor], form: str | None = None) -> None:
    """Store the map in the metadata of a model, and its form where others than onnxruntime run it."""
    entries = {KEY: json.dumps([asdict(tensor) for tensor in tensors])} | ({FORM: form} if form is not None else {})
    for key, value in entries.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value


def read_form(model: ModelProto) -> str | None:
    """The form that `write_tensor_map` stored; None where the file is one for onnxruntime, or of other origin."""
    return next((str(entry.value) for entry in model.metadata_props if entry.key == FORM), None)


def read_tensor_map(model: ModelProto) -> tuple[MappedTensor, ...]:
    """The map that `write_tensor_map` stored; a ValueError for models of other origin."""
    for entry in model.metadata_props:
        if entry.key == KEY:
            return tuple(MappedTensor(**fields) for fields in json.loads(entry.value))
    raise ValueError(
        "this ONNX file was not written by bayesbits.export_onnx: it names no layers of a deployed network"
    )


def name_inputs_and_outputs(graph: GraphProto, inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, str]:
    """Rename the inputs and outputs of a graph, in their order; returns the new name of every renamed tensor.

    Other tensors that have one of these names are renamed as well. An output that is at the same time an input, a
    constant, or another output becomes a tensor of its own, computed by an Identity node. So does one that other nodes
    read: onnxruntime moves a quantizer in front of the transposition behind such an output, which it rounds then.
    """
    if len(graph.input) != len(inputs) or len(graph.output) != len(outputs):
        raise ValueError(
            f"torch.onnx made a graph of {len(graph.input)} inputs and {len(graph.output)} outputs out of a network "
            f"with {len(inputs)} and {len(outputs)}"
        )
    computed = {name for node in graph.node for name in node.output}
    present = computed | {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input}
    wanted = {*inputs, *outputs}
    names = {name: _unused(name, present | wanted) for name in sorted(present & wanted)}
    names |= {value.name: name for value, name in zip(graph.input, inputs, strict=True)}
    identities = []
    read = {name for node in graph.node for name in node.input}
    for value, name in zip(graph.output, outputs, strict=True):
        if value.name in computed - read and names.get(value.name) not in wanted:
            names[value.name] = name
        else:
            identities.append((value.name, name))
        value.name = name
    for value, name in zip(graph.input, inputs, strict=True):
        value.name = name
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(name, name) for name in tensors]
    for source, name in identities:
        graph.node.append(helper.make_node("Identity", [names.get(source, source)], [name], name=f"{name}/copy"))
    return names


def _unused(name: str, taken: set[str]) -> str:
    return _unused(f"{name}/inner", taken) if f"{name}/inner" in taken else f"{name}/inner"
