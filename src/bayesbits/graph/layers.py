"""Finding the weighted layers of an exported network, and the other operations with multiply-accumulates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesbits.cost.macs import attention_macs, layer_macs, operation_macs, recurrent_macs
from bayesbits.graph.channel_rules import PADS
from bayesbits.graph.exported_program import Program, arguments, operation, shape
from bayesbits.graph.layer_norms import own_batch_norm, own_instance_norm
from bayesbits.graph.weight_products import Product, Products, operands
from bayesbits.records.topology import Unsupported
from bayesbits.utils.torch_private import OpOverload
from bayesbits.utils.weight_products import CONVOLUTIONS, SIGNATURES

KINDS: Mapping[type[nn.Module], str] = {
    nn.Linear: "linear",
    nn.Conv1d: "conv",
    nn.Conv2d: "conv",
    nn.Conv3d: "conv",
    nn.ConvTranspose1d: "conv_transpose",
    nn.ConvTranspose2d: "conv_transpose",
    nn.ConvTranspose3d: "conv_transpose",
}
RECURRENT_OPERATIONS = {
    "lstm": "LSTM",
    "lstm_cell": "LSTM",
    "gru": "GRU",
    "gru_cell": "GRU",
    "rnn_tanh": "RNN",
    "rnn_relu": "RNN",
    "rnn_tanh_cell": "RNN",
    "rnn_relu_cell": "RNN",
}
ATTENTION_PRODUCT = "attention product"
CUSTOM_OPERATION = "custom operation"
PRODUCTS = ("scaled_dot_product_attention", "matmul", "mm", "bmm", "baddbmm", "addmm", "einsum")


@dataclass(frozen=True)
class FoundLayer:
    """A weighted module or product, and the nodes that run it."""

    name: str
    kind: str
    module: nn.Module
    """The module whose code runs it."""
    weight: fx.Node
    calls: tuple[fx.Node, ...]
    parameter: str
    norm: str | None
    shared_weight: bool
    """Whether another operation reads the same weight, or a parameter that it is computed from."""
    parameters: tuple[str, ...]
    """The parameters that weight and bias are, or are computed from."""
    product: Product | None = None
    """How to find the layer while the network runs; None where a module is called that has the forward of torch.nn."""
    instance_norm: str | None = None
    """As of a `Layer`."""

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """The weight's shape with its outputs in front of its inputs, or as a transposed convolution stores it."""
        turned = SIGNATURES[operation(self.calls[0])].inputs_first
        return shape(self.weight)[::-1] if turned else shape(self.weight)

    @property
    def groups(self) -> int:
        return int(arguments(self.calls[0]).get("groups", 1))

    @property
    def has_bias(self) -> bool:
        return operands(self.calls[0])[2] is not None

    @property
    def is_stored(self) -> bool:
        """Whether weight and bias are parameters, and not computed from some."""
        tensors = () if self.product is None else (self.product.weight, self.product.bias)
        return not any(tensor is not None and tensor.steps for tensor in tensors)

    def weight_value(self) -> Tensor:
        """The weight; where it `is_stored`, writing into it changes the parameter."""
        if self.product is None:
            return weight_of(self.module)
        weight = self.product.weight.evaluate()
        return weight.t() if SIGNATURES[self.product.call.operation].inputs_first else weight

    def bias_value(self) -> Tensor | None:
        """The bias; None where there is none."""
        if self.product is not None:
            return None if self.product.bias is None else self.product.bias.evaluate()
        bias = self.module.bias
        assert isinstance(bias, Tensor | None)
        return bias

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
        return sum(layer_macs(self.kind, self.weight_shape, shape(data_of(call)), shape(call)) for call in self.calls)


def other_parameters(
    model: nn.Module, parameters: Iterable[str], modules: Iterable[str], used: Collection[str] | None = None
) -> int:
    """The number of elements of parameters that are neither among those named nor belong to one of the modules named.

    `used` holds the names of the parameters that the network reads; None: they are not known, and all parameters count.
    """
    owners = [model.get_submodule(name) for name in modules]
    known = {id(parameter) for owner in owners for parameter in owner.parameters(recurse=False)}
    known |= {id(model.get_parameter(name)) for name in parameters}
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
    standard = {node: program.path(node) for node in program.nodes if _runs_layer(program, node)}
    products = Products(program, standard)
    calls: dict[Any, list[fx.Node]] = {}
    for node in program.nodes:
        if node in standard:
            calls.setdefault(standard[node], []).append(node)
        elif node in products.found:
            calls.setdefault((program.path(node), products.found[node]), []).append(node)
    return tuple(_FoundLayers(program, products, standard).read(list(calls.values())))


class _FoundLayers:
    """Names the layers and their weights."""

    def __init__(self, program: Program, products: Products, standard: Mapping[fx.Node, str]) -> None:
        self.program, self.products, self.standard = program, products, standard
        self._first_names = {id(parameter): name for name, parameter in program.model.named_parameters()}
        self._names, self._weights = set(standard.values()), set[str]()

    def read(self, calls: list[list[fx.Node]]) -> Iterator[FoundLayer]:
        owners = [self.program.path(nodes[0]) for nodes in calls]
        self._weights = {self._stored(nodes[0]) or "" for nodes in calls}
        for nodes in calls:
            owner = self.program.path(nodes[0])
            alone = bool(owner) and owners.count(owner) == 1
            yield self._standard(nodes) if nodes[0] in self.standard else self._product(nodes, alone=alone)

    def _standard(self, nodes: list[fx.Node]) -> FoundLayer:
        module, weight = self.program.module(nodes[0]), nodes[0].args[1]
        assert isinstance(weight, fx.Node)
        kind, parameter = layer_kind(module), self._stored(nodes[0])
        assert kind is not None
        assert parameter is not None
        own = [self._first_names[id(own)] for own in module.parameters(recurse=False)]
        shared = any(user not in nodes for user in weight.users)
        norm = own_batch_norm(self.program, kind, nodes)
        name = self.standard[nodes[0]]
        behind = own_instance_norm(self.program, kind, nodes)
        return FoundLayer(
            name, kind, module, weight, tuple(nodes), parameter, norm, shared, tuple(own), instance_norm=behind
        )

    def _product(self, nodes: list[fx.Node], *, alone: bool) -> FoundLayer:
        """A layer that is not a standard call: named by its module where that has no other, or by its parameter."""
        name = self.program.path(nodes[0]) if alone else self.products.label(nodes[0])
        name = unique_name(name, self._names)
        parameter = self._stored(nodes[0]) or unique_name(f"{name}.weight", self._weights)
        kind = _product_kind(nodes[0])
        used: dict[fx.Node, None] = {}
        weights: set[fx.Node] = {*nodes}
        for node in nodes:
            _, weight, bias = operands(node)
            weights.update(self.products.closure(weight))
            used |= dict.fromkeys((*self.products.parameters(weight), *self.products.parameters(bias)))
        shared = any(
            user not in weights for own in self.products.parameters(operands(nodes[0])[1]) for user in own.users
        )
        own = tuple(self.program.parameters[one] for one in used)
        return FoundLayer(
            name, kind, self.program.module(nodes[0]), operands(nodes[0])[1], tuple(nodes), parameter,
            own_batch_norm(self.program, kind, nodes), shared, own, self.products.product(nodes[0]),
            own_instance_norm(self.program, kind, nodes),
        )  # fmt: skip

    def _stored(self, node: fx.Node) -> str | None:
        """The first name of the parameter that holds a layer's weight; None where the weight is computed."""
        name = self.products.stored_parameter(node)
        return None if name is None else self._first_names[id(self.program.model.get_parameter(name))]


def layer_input(program: Program, call: fx.Node) -> fx.Node:
    """The tensor whose values a layer multiplies, before it is padded by the code of the layer's module.

    A module with the forward of torch.nn may pad in any mode. Elsewhere the padding is one with zeros, which lie on
    every grid.
    """
    inside, node = program.calls(call)[-1:], data_of(call)
    if _runs_layer(program, call):
        while inside and program.calls(node)[-1:] == inside and node.all_input_nodes:
            node = node.all_input_nodes[0]
        return node
    while inside and inside[0] in program.calls(node) and _pads_zeros(node):
        node = node.all_input_nodes[0]
    return node


def find_unsupported(program: Program, layers: tuple[FoundLayer, ...]) -> dict[fx.Node, Unsupported]:
    """Every operation with MACs that is not a layer's, every custom operation, and embeddings, which have no MACs."""
    of_layers = {call for layer in layers for call in layer.calls}
    waiting = [operands(call)[1] for layer in layers for call in layer.calls if layer.product is not None]
    while waiting:  # what computes a weight from parameters alone is computed before deployment
        node = waiting.pop()
        if node not in of_layers:
            of_layers.add(node)
            waiting += node.all_input_nodes
    found = {}
    for node in program.nodes:
        if node.op != "call_function" or node in of_layers:
            continue
        what, reason = _describe(program, node)
        macs = _node_macs(node)
        if macs or what in ("embedding", CUSTOM_OPERATION, *RECURRENT_OPERATIONS.values()):
            found[node] = Unsupported(program.path(node) or node.name, what, macs, reason)
    return found


def custom_operation_refusal(name: str) -> str:
    """Why a network with this operation can be neither saved nor exported, and the way out."""
    experts = ' (for experts of transformers, model.set_experts_implementation("batched_mm") does so)'
    hint = experts if name.startswith("transformers") else ""
    return (
        f"{name} is none of torch's own operations; a deployed network that calls it can be neither saved nor "
        f"exported. Replace it by operations of torch before attaching{hint}"
    )


def data_of(call: fx.Node) -> fx.Node:
    """The tensor that a layer's call multiplies with its weight."""
    data = operands(call)[0]
    assert isinstance(data, fx.Node)
    return data


def _runs_layer(program: Program, node: fx.Node) -> bool:
    """Whether a node runs a layer of torch.nn with that layer's own weight, and not a function or a computed weight."""
    if node.op != "call_function" or operation(node) not in (*CONVOLUTIONS, "linear"):
        return False
    module, weight = program.module(node), node.args[1]
    if layer_kind(module) is None or not isinstance(weight, fx.Node) or weight not in program.parameters:
        return False
    return program.model.get_parameter(program.parameters[weight]) is module.weight


def _product_kind(node: fx.Node) -> str:
    name = operation(node)
    return "conv_transpose" if "transpose" in name else "conv" if name in CONVOLUTIONS else "linear"


def _pads_zeros(node: fx.Node) -> bool:
    """Whether a node pads with zeros, and cuts nothing off."""
    if node.op != "call_function" or operation(node) not in PADS:
        return False
    given = arguments(node)
    return given.get("mode", "constant") == "constant" and not given.get("value") and min(given["pad"], default=0) >= 0


def unique_name(name: str, taken: set[str], mark: str = "#") -> str:
    """The name, with a mark and a number behind it where it is taken; it is taken from now on."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}{mark}{number}"
    taken.add(found)
    return found


def _describe(program: Program, node: fx.Node) -> tuple[str, str]:
    """The name for an operation that is not a layer's, and the reason why it is not handled."""
    name = operation(node)
    origins = [_origin(used) for used in node.all_input_nodes]
    weights = [program.parameters[origin] for origin in origins if origin in program.parameters]
    if "::" in name:
        return CUSTOM_OPERATION, f"its MACs are not known and not counted, as {custom_operation_refusal(name)}"
    if name.startswith("embedding"):
        return (
            "embedding",
            "a table of weights that stays in float: its rows are computed, or no parameter of the network",
        )
    if name in RECURRENT_OPERATIONS:
        return (
            RECURRENT_OPERATIONS[name],
            "a cell that is called step by step; the weights of nn.LSTM, nn.GRU and nn.RNN can be quantized",
        )
    if name in (*CONVOLUTIONS, "linear"):
        what = "functional linear" if name == "linear" else "functional convolution"
        return what, "its weight is computed from data, or it has a form that no layer has"
    if weights:
        return "functional weights", f"{weights[0]} is multiplied by {name}, which is not attached to"
    if name in PRODUCTS:
        return ATTENTION_PRODUCT, f"{name} multiplies two computed tensors, no weight"
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
        query, key, value = (shape(used) for used in node.args[:3] if isinstance(used, fx.Node))
        return attention_macs(query, key, value)
    if operation(node) in RECURRENT_OPERATIONS:
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
