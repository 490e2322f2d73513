"""Intermediate values of the deployed program, and which of its nodes hold the codes of which quantizer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from bayesbits.deploy.modules import DEQUANTIZERS, LAYERS, PRODUCTS, QUANTIZERS
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.verification.float64_mode import Float64Mode
from bayesbits.graph.exported_program import operation
from bayesbits.graph.operations import AVERAGES, INTERPOLATIONS
from bayesbits.records.topology import Topology
from bayesbits.utils.naming import name_of


@dataclass(frozen=True)
class CodesNode:
    """A node of the deployed program that holds the codes of a quantizer of the simulation."""

    tensor: str
    """The quantizer's name."""
    node: str
    """The node's name."""
    scaled: bool
    """Whether it holds code times step instead of the code."""
    from_integer_layer: bool
    """Whether integer layers or products emit these codes, and no other operation computes them."""
    dynamic: bool = False
    """Whether it holds the numbers that a layer quantizes at run time, instead of codes."""


class _Recorder(fx.Interpreter):
    """Runs a deployed program and keeps the values of the wanted nodes.

    With `bound` ("low" or "high") every layer that emits codes emits its lowest or highest code everywhere.
    """

    def __init__(self, program: fx.GraphModule, nodes: Collection[str], bound: str | None = None) -> None:
        super().__init__(program)
        self._wanted, self._bound = set(nodes), bound
        self.values: dict[str, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        kind = (module_of(n) or ("", ""))[0]
        if self._bound is not None and kind in (LAYERS, PRODUCTS):
            module: Any = self.submodules[str(n.target)]
            emits = module.layer if kind == LAYERS else module.product
            if emits.output is not None:
                result = torch.full_like(result, emits.output_low if self._bound == "low" else emits.output_high)
        if n.name in self._wanted:
            self.values[n.name] = result
        return result


def run_deployed(
    small: DeployedNetwork, inputs: list[Tensor], nodes: Collection[str], bound: str | None = None
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The values of these nodes of the program, by name, and the outputs; `bound` as for the recorder above."""
    recorder = _Recorder(small.program, nodes, bound)
    with torch.no_grad():
        outputs = recorder.run(*inputs)
    return recorder.values, list(outputs)


class _ExactRecorder(fx.Interpreter):
    """Runs a deployed program in float64, where layers and quantizers return the values known from float32.

    So every value in `exact` is computed in float64 from the float32 values of the layers and quantizers in front.
    Layers and quantizers whose own exact value is not wanted do not run.
    """

    def __init__(self, program: fx.GraphModule, known: Mapping[str, Tensor], nodes: Collection[str]) -> None:
        super().__init__(program)
        self._known, self._wanted = known, set(nodes)
        self.exact: dict[str, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        known = self._known.get(n.name) if n.op == "call_module" else None
        if known is not None and n.name not in self._wanted:
            return known
        result = super().run_node(n)
        if n.name in self._wanted:
            self.exact[n.name] = result
        return result if known is None else known


def run_exact(
    small: DeployedNetwork, inputs: list[Tensor], known: Mapping[str, Tensor], nodes: Collection[str]
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The same in float64, each value computed from the known values of the layers and quantizers in front of it.

    Layers that quantize their input at run time do so in float32, outside of the mode, or some codes would be others.
    """
    with torch.no_grad():
        dynamic = dict(_exact_dynamic_layers(small, known, nodes))
    recorder = _ExactRecorder(small.program, known, set(nodes) - dynamic.keys())
    with torch.no_grad(), Float64Mode():
        outputs = recorder.run(*inputs)
    return recorder.exact | dynamic, list(outputs)


def _exact_dynamic_layers(
    small: DeployedNetwork, known: Mapping[str, Tensor], nodes: Collection[str]
) -> Iterator[tuple[str, Tensor]]:
    for node in small.program.graph.nodes:
        module = module_of(node)
        if node.name in nodes and module is not None and module[0] == LAYERS:
            layer: Any = small.program.get_submodule(str(node.target))
            if layer.layer.dynamic:
                yield node.name, layer.exact(known[node.all_input_nodes[0].name])


def module_of(node: fx.Node) -> tuple[str, str] | None:
    """The module that a node calls: "layers", "products", "quantizers" or "dequantizers", and its name.

    None for operations.
    """
    if node.op != "call_module":
        return None
    group, _, key = str(node.target).partition(".")
    return group, name_of(key)


def layer_inputs(small: DeployedNetwork, topology: Topology) -> dict[str, list[CodesNode]]:
    """For every layer with a quantized input the nodes of its input, one for each call.

    `topology` is that of the trained network, which names inputs that are quantized at run time.
    """
    found: dict[str, list[CodesNode]] = {}
    for node in small.program.graph.nodes:
        module = module_of(node)
        if module is not None and module[0] == LAYERS:
            layer = small.integer.layer(module[1])
            if layer.input is not None:
                source, scaled = node.all_input_nodes[0], layer.arithmetic == "float"
                emitted = _from_integer_layer(source, layer.input, small)
                found.setdefault(layer.name, []).append(CodesNode(layer.input, source.name, scaled, emitted))
            elif layer.dynamic:
                tensor, source = topology.layer(layer.name).activation, node.all_input_nodes[0]
                codes = CodesNode(tensor, source.name, scaled=False, from_integer_layer=False, dynamic=True)
                found.setdefault(layer.name, []).append(codes)
    return found


def product_inputs(small: DeployedNetwork) -> dict[str, list[CodesNode]]:
    """For every quantized operand of a product of two activations its nodes, one for each call."""
    found: dict[str, list[CodesNode]] = {}
    for node in small.program.graph.nodes:
        module = module_of(node)
        if module is None or module[0] != PRODUCTS:
            continue
        product = small.integer.product(module[1])
        for source, grid in zip(node.args, (product.left, product.right), strict=True):
            if grid is not None:
                emitted = _from_integer_layer(source, grid, small)
                codes = CodesNode(grid, source.name, product.arithmetic == "float", emitted)
                found.setdefault(grid, []).append(codes)
    return found


def operand_codes(small: DeployedNetwork) -> dict[str, list[CodesNode]]:
    """For every quantized operand of an addition the nodes of its codes, one for each call.

    The codes are the input of the dequantizer; where they are averaged or interpolated before that, of this operation.
    """
    found: dict[str, dict[fx.Node, None]] = {}
    for node in small.program.graph.nodes:
        module = module_of(node)
        if module is not None and module[0] == DEQUANTIZERS:
            source = node.all_input_nodes[0]
            while source.op == "call_function" and (
                AVERAGES.fullmatch(operation(source)) or INTERPOLATIONS.fullmatch(operation(source))
            ):
                source = source.all_input_nodes[0]
            found.setdefault(module[1], {})[source] = None
    return {
        name: [CodesNode(name, source.name, False, _from_integer_layer(source, name, small)) for source in sources]
        for name, sources in found.items()
    }


def only_as_codes(small: DeployedNetwork) -> frozenset[str]:
    """The operands whose readers are all quantizers of an equal grid: they take the codes, without rounding again."""
    modules = [module_of(node) for node in small.program.graph.nodes]
    made = {_emitted_grid(module, small) for module in modules if module is not None}
    made |= {module[1] for module in modules if module is not None and module[0] == QUANTIZERS}
    numbers = {module[1] for module in modules if module is not None and module[0] == DEQUANTIZERS}
    read = {layer.input for layer in small.integer.layers}
    read |= {grid for product in small.integer.products for grid in (product.left, product.right)}
    return frozenset(name for name in made if name is not None) - numbers - read


def _emitted_grid(module: tuple[str, str], small: DeployedNetwork) -> str | None:
    """The grid whose codes a layer or product emits; None where it emits numbers, and for other modules."""
    kind, name = module
    if kind == PRODUCTS:
        return small.integer.product(name).output
    return small.integer.layer(name).output if kind == LAYERS else None


def _from_integer_layer(node: fx.Node, grid: str, small: DeployedNetwork) -> bool:
    """Whether integer layers emit these codes, and only operations that move or select values lie between."""
    module = module_of(node)
    if module is not None:
        if module[0] == QUANTIZERS:
            return False
        output = _emitted_grid(module, small)
        return output is not None and small.integer.grid(output).same_codes(small.integer.grid(grid))
    if node.op != "call_function":
        return False
    sources = [source for source in node.all_input_nodes if source.op != "get_attr" and operation(source) != "sym_size"]
    return bool(sources) and all(_from_integer_layer(source, grid, small) for source in sources)
