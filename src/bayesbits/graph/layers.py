"""Finding the weighted layers of an exported network, and the other operations with multiply-accumulates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesbits.cost.macs import attention_macs, layer_macs, operation_macs, recurrent_macs
from bayesbits.graph.exported_program import Program, operation, shape
from bayesbits.records.topology import Layer, Unsupported
from bayesbits.utils.torch_private import BatchNorm, OpOverload

KINDS: Mapping[type[nn.Module], str] = {
    nn.Linear: "linear",
    nn.Conv1d: "conv",
    nn.Conv2d: "conv",
    nn.Conv3d: "conv",
    nn.ConvTranspose1d: "conv_transpose",
    nn.ConvTranspose2d: "conv_transpose",
    nn.ConvTranspose3d: "conv_transpose",
}
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution")
BATCH_NORMS = ("batch_norm", "_native_batch_norm_legit_no_training", "native_batch_norm")
RECURRENT = {
    "lstm": "LSTM",
    "lstm_cell": "LSTM",
    "gru": "GRU",
    "gru_cell": "GRU",
    "rnn_tanh": "RNN",
    "rnn_relu": "RNN",
    "rnn_tanh_cell": "RNN",
    "rnn_relu_cell": "RNN",
}
PRODUCTS = ("scaled_dot_product_attention", "matmul", "mm", "bmm", "baddbmm", "addmm", "einsum")


@dataclass(frozen=True)
class FoundLayer:
    """A weighted module and the nodes that run it."""

    name: str
    kind: str
    module: nn.Module
    weight: fx.Node
    calls: tuple[fx.Node, ...]
    parameter: str
    norm: str | None
    shared_weight: bool
    """Whether another operation reads the same weight."""

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return shape(self.weight)

    @property
    def groups(self) -> int:
        return int(getattr(self.module, "groups", 1))

    @property
    def inputs(self) -> int:
        """Input channels or features."""
        sizes = self.weight_shape
        return sizes[0] if self.kind == "conv_transpose" else sizes[1] * self.groups

    @property
    def outputs(self) -> int:
        """Output channels or features."""
        sizes = self.weight_shape
        return sizes[1] * self.groups if self.kind == "conv_transpose" else sizes[0]

    @property
    def depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.inputs == self.outputs

    @property
    def macs(self) -> int:
        return sum(layer_macs(self.kind, self.weight_shape, shape(_operand(call)), shape(call)) for call in self.calls)


def other_parameters(model: nn.Module, layers: Iterable[Layer], used: Collection[str] | None = None) -> int:
    """The number of elements of parameters that belong neither to a layer nor to the batch norm folded into it.

    `used` holds the names of the parameters that the network reads; None: they are not known, and all parameters count.
    """
    owners = [model.get_submodule(name) for layer in layers for name in (layer.name, layer.norm) if name is not None]
    known = {id(parameter) for owner in owners for parameter in owner.parameters(recurse=False)}
    return sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if id(parameter) not in known and (used is None or name in used)
    )


def layer_kind(module: nn.Module) -> str | None:
    """The kind of layer that a module is; None for other modules, and for subclasses with a forward of their own."""
    for base, kind in KINDS.items():
        if isinstance(module, base):
            return kind if type(module).forward is base.forward else None
    return None


def weight_of(module: nn.Module) -> Tensor:
    """The weight of a layer's module."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight


def find_layers(program: Program) -> tuple[FoundLayer, ...]:
    """The weighted layers, in the order in which they first run."""
    calls: dict[str, list[fx.Node]] = {}
    for node in program.nodes:
        if _runs_layer(program, node):
            calls.setdefault(program.path(node), []).append(node)
    names = {id(parameter): name for name, parameter in program.model.named_parameters()}
    found = []
    for name, nodes in calls.items():
        module, weight = program.module(nodes[0]), nodes[0].args[1]
        assert isinstance(weight, fx.Node)
        kind = layer_kind(module)
        assert kind is not None
        parameter = names[id(weight_of(module))]
        shared = any(user not in nodes for user in weight.users)
        norm = _own_norm(program, kind, nodes)
        found.append(FoundLayer(name, kind, module, weight, tuple(nodes), parameter, norm, shared))
    return tuple(found)


def layer_input(program: Program, call: fx.Node) -> fx.Node:
    """The tensor that a layer's module is called with, before a circular convolution pads it inside the module."""
    inside = program.calls(call)[-1:]
    node = _operand(call)
    while inside and program.calls(node)[-1:] == inside and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def find_unsupported(program: Program, layers: tuple[FoundLayer, ...]) -> dict[fx.Node, Unsupported]:
    """Every operation with MACs that is not a layer's, every custom operation, and embeddings, which have no MACs."""
    of_layers = {call for layer in layers for call in layer.calls}
    found = {}
    for node in program.nodes:
        if node.op != "call_function" or node in of_layers:
            continue
        what, reason = _describe(program, node)
        macs = _node_macs(node)
        if macs or what in ("embedding", "custom operation", *RECURRENT.values()):
            found[node] = Unsupported(program.path(node) or node.name, what, macs, reason)
    return found


def _operand(call: fx.Node) -> fx.Node:
    operand = call.args[0]
    assert isinstance(operand, fx.Node)
    return operand


def _runs_layer(program: Program, node: fx.Node) -> bool:
    """Whether a node runs a layer of torch.nn with that layer's own weight, and not a function or a computed weight."""
    if node.op != "call_function" or operation(node) not in (*CONVOLUTIONS, "linear"):
        return False
    module, weight = program.module(node), node.args[1]
    if layer_kind(module) is None or not isinstance(weight, fx.Node) or weight not in program.parameters:
        return False
    return program.model.get_parameter(program.parameters[weight]) is module.weight


def _own_norm(program: Program, kind: str, calls: list[fx.Node]) -> str | None:
    """The batch norm that is the only reader of a layer's output, over its channels, with statistics to fold."""
    readers = [user for user in calls[0].users if user.users or user in program.outputs]
    if len(calls) != 1 or len(readers) != 1 or calls[0] in program.outputs:
        return None
    reader = readers[0]
    if operation(reader) not in BATCH_NORMS or reader.args[0] is not calls[0]:
        return None
    module = program.module(reader)
    if not isinstance(module, BatchNorm) or module.running_var is None:
        return None
    features_first = kind == "linear" and len(shape(calls[0])) != 2  # batch norm would read positions as channels
    return None if features_first or program.calls_of[program.path(reader)] != 1 else program.path(reader)


def _describe(program: Program, node: fx.Node) -> tuple[str, str]:
    """The name for an operation that is not a layer's, and the reason why it is not handled."""
    name = operation(node)
    origins = [_origin(used) for used in node.all_input_nodes]
    weights = [program.parameters[origin] for origin in origins if origin in program.parameters]
    if "::" in name:
        return "custom operation", f"{name} is not one of torch's own, so that its MACs are not known and not counted"
    if name.startswith("embedding"):
        return "embedding", "a table of weights that is looked up, not multiplied; it stays float"
    if name in RECURRENT:
        return RECURRENT[name], "recurrent cells are not quantized"
    if name in (*CONVOLUTIONS, "linear"):
        what = "functional linear" if name == "linear" else "functional convolution"
        weight = weights[0] if weights else "a computed tensor"
        return what, f"{weight} is multiplied without a call of the convolution or linear layer that owns it"
    if weights:
        return "functional weights", f"{weights[0]} is multiplied by {name}, not by a layer"
    if name in PRODUCTS:
        return "attention product", f"{name} multiplies two computed tensors, no weight"
    return f"functional {name}", f"{name} multiplies with something that is no layer's own weight"


def _origin(node: fx.Node) -> fx.Node:
    """The tensor that another one was computed from by operations on one tensor: of a transposed parameter itself."""
    while len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return node


def _node_macs(node: fx.Node) -> int:
    """The MACs of a node that is not a layer's; pointwise operations have none."""
    if len(node.all_input_nodes) < 1 or not isinstance(node.target, OpOverload):
        return 0
    if torch.Tag.pointwise in node.target.tags:
        return 0
    if operation(node) == "scaled_dot_product_attention":  # torch counts it on some devices only
        query, key, value = (shape(used) for used in node.all_input_nodes[:3])
        return attention_macs(query, key, value)
    if operation(node) in RECURRENT:
        data, *others = (used for used in node.all_input_nodes if isinstance(used.meta["val"], Tensor))
        matrices = [shape(used) for used in others if used.op == "placeholder" and len(shape(used)) == 2]
        return recurrent_macs(shape(data), matrices)
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda used: used.meta["val"])
    fakes = [used.meta["val"] for used in node.all_input_nodes if isinstance(used.meta.get("val"), Tensor)]
    mode: Any = getattr(fakes[0], "fake_mode", None) if fakes else None
    if mode is None:
        return 0
    with mode, torch.no_grad():
        return operation_macs(node.target, args, kwargs)
