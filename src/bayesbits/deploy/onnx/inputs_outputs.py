"""The inputs and outputs of an ONNX graph: their names are the user's, and no other tensor has them."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import GraphProto, helper


def name_ends(graph: GraphProto, inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, str]:
    """Give the inputs and outputs of a graph these names, in their order; returns what was renamed.

    Every other tensor of such a name gets another one. An output that is an input, a constant, or another output once
    more is a tensor of its own behind an Identity.
    """
    if len(graph.input) != len(inputs) or len(graph.output) != len(outputs):
        raise ValueError(
            f"torch.onnx made a graph of {len(graph.input)} inputs and {len(graph.output)} outputs out of a network "
            f"with {len(inputs)} and {len(outputs)}"
        )
    made = {name for node in graph.node for name in node.output}
    present = made | {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input}
    wanted = {*inputs, *outputs}
    names = {name: _other(name, present | wanted) for name in sorted(present & wanted)}
    names |= {value.name: name for value, name in zip(graph.input, inputs, strict=True)}
    copies = []
    for value, name in zip(graph.output, outputs, strict=True):
        if value.name in made and names.get(value.name) not in wanted:
            names[value.name] = name
        else:
            copies.append((value.name, name))
        value.name = name
    for value, name in zip(graph.input, inputs, strict=True):
        value.name = name
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.node:
        for ends in (node.input, node.output):
            ends[:] = [names.get(name, name) for name in ends]
    for source, name in copies:
        graph.node.append(helper.make_node("Identity", [names.get(source, source)], [name], name=f"{name}/copy"))
    return names


def _other(name: str, taken: set[str]) -> str:
    return _other(f"{name}/inner", taken) if f"{name}/inner" in taken else f"{name}/inner"
