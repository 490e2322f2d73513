"""Finding the weights of recurrent layers that can be codes, and why the others stay in float.

A runtime has no integer recurrence: activations and sums stay in float, and the matrices alone are stored as codes, as
tables of embeddings are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import fx, nn

from bayesbits.cost.macs import recurrent_macs
from bayesbits.graph.exported_program import Program, arguments, operation, shape
from bayesbits.graph.tables import FoundTable, parameter_nodes
from bayesbits.records.topology import RECURRENT, Table, Unsupported

OPERATIONS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
CLASSES = (nn.LSTM, nn.GRU, nn.RNN)


def find_recurrent_weights(
    program: Program, unsupported: Mapping[fx.Node, Unsupported]
) -> tuple[tuple[FoundTable, ...], dict[fx.Node, Unsupported]]:
    """The matrices of a network's recurrent layers, and what is still not supported, with the reason."""
    layers: dict[str, list[fx.Node]] = {}
    for node in unsupported:
        if operation(node) in OPERATIONS:
            layers.setdefault(program.path(node), []).append(node)
    found: list[FoundTable] = []
    remaining = dict(unsupported)
    for path, calls in layers.items():
        obstacle = _obstacle(program, calls)
        for call in calls:
            del remaining[call]
            if obstacle is not None:
                remaining[call] = replace(unsupported[call], reason=f"its weights stay in float: {obstacle}")
        if obstacle is None:
            found += _tables(program, path, calls)
    return tuple(found), remaining


def _tables(program: Program, path: str, calls: Sequence[fx.Node]) -> list[FoundTable]:
    """A table for every matrix of a module."""
    first = {id(parameter): name for name, parameter in program.model.named_parameters()}
    tables = []
    for weight in _weights(calls[0]):
        if len(shape(weight)) == 2:  # biases stay in float
            rows, columns = shape(weight)
            name = first[id(program.model.get_parameter(program.parameters[weight]))]
            macs = sum(recurrent_macs(shape(arguments(call)["input"]), [(rows, columns)]) for call in calls)
            table = Table(name, name, rows, columns, (path,), RECURRENT, macs)
            tables.append(FoundTable(table, tuple(calls), weight))
    return tables


def _obstacle(program: Program, calls: Sequence[fx.Node]) -> str | None:
    """Why the weights of a module cannot be codes; None where they can."""
    module, kind = program.module(calls[0]), operation(calls[0])
    base = next((base for base in CLASSES if isinstance(module, base)), None)
    if base is None or not isinstance(module, nn.RNNBase):
        return f"torch.{kind} is called by code that is not that of nn.LSTM, nn.GRU or nn.RNN"
    if type(module).forward is not base.forward:
        return f"{type(module).__name__} has a forward of its own"
    if module.proj_size:
        return "it has proj_size, which torch's ONNX exporter cannot write"
    own = [parameter for group in module.all_weights for parameter in group]
    for call in calls:
        if "batch_sizes" in arguments(call):
            return "it is called with a PackedSequence"
        weights = _weights(call)
        given = [program.model.get_parameter(program.parameters[one]) for one in weights if one in program.parameters]
        if len(given) != len(weights) or any(one is not other for one, other in zip(given, own, strict=True)):
            return "they are computed in every pass, as by weight norm"
    for other in {user for node in parameter_nodes(program, _weights(calls[0])) for user in node.users} - set(calls):
        where = program.path(other)
        return f"{f'{where} ({operation(other)})' if where else operation(other)} reads one of them, too"
    return "two of them are one parameter" if len(set(map(id, own))) < len(own) else None


def _weights(call: fx.Node) -> list[fx.Node]:
    """The matrices and biases that a call reads, in the order of the module."""
    weights: list[fx.Node] = list(arguments(call)["params"])
    return weights
